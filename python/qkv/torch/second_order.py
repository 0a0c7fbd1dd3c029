# SPDX-License-Identifier: Apache-2.0
"""Second derivatives of attention with respect to every input, from the core's, which hold the scale constant.

The scores depend on q and the scale through their product y = scale q alone. With cotangents c_q and c_scale it moves
by scale c_q + c_scale q: as if c_q were c_q + (c_scale / scale) q and the scale stood still. So, with L the sum that is
differentiated, g the core's gradients for that c_q, and d_q what the backward gives,

    dL/dq = g_q + (c_scale / scale) d_q        dL/dscale = (<g_q, q> + <d_q, c_q>) / scale
"""

import torch

from qkv import _core
from qkv.torch.ops import INPUTS, SCALE, UPSTREAM, new_like, number_dtype

Q = INPUTS.index("q")


class SecondOrder:
    """One point, upstream gradients and options; inputs as in INPUTS, `state` (out, row_max, row_sum)."""

    def __init__(self, inputs, state, d_out, d_lse, keywords):
        self.inputs, self.d_out, self.d_lse, self.keywords = inputs, d_out, d_lse, keywords
        out, row_max, row_sum = state
        self.state = (row_max, row_sum, out)

    def gradients(self, cotangents, wanted):
        """`cotangents`: by place in INPUTS; `wanted`: places in INPUTS + UPSTREAM."""
        if SCALE in cotangents or SCALE in wanted:
            return self._with_scale(dict(cotangents), list(wanted))
        return self._core(cotangents, wanted)

    def _core(self, cotangents, wanted):
        tensors = (*self.inputs, self.d_out, self.d_lse)
        results = {(INPUTS + UPSTREAM)[place]: new_like(tensors[place]) for place in wanted}
        _core.second_order(*self.inputs[:3], self.state, self.d_out, self.d_lse,
                           {INPUTS[place]: cotangent for place, cotangent in cotangents.items()}, results,
                           **self.keywords)
        return list(results.values())

    def _with_scale(self, cotangents, wanted):
        q, scale = self.inputs[Q], self.inputs[SCALE]
        number = float(scale)
        if number == 0:
            raise ValueError("attention: a second derivative with respect to scale needs a scale other than 0, got 0")
        wide = number_dtype(q)
        ratio = float(cotangents.pop(SCALE)) / number if SCALE in cotangents else 0.0
        c_q = cotangents.get(Q)
        moved = q.to(wide) * ratio if c_q is None else c_q.to(wide) + q.to(wide) * ratio
        asked = [place for place in wanted if place != SCALE] + [Q] * (Q not in wanted)
        found = dict(zip(asked, self._core({**cotangents, Q: moved.to(q.dtype)}, asked)))
        d_q = self._gradient_of_q().to(wide)
        g_q = found[Q].to(wide)
        if SCALE in wanted:
            total = (g_q * q).sum(dtype=torch.float64)
            if c_q is not None:
                total = total + (d_q * c_q).sum(dtype=torch.float64)
            found[SCALE] = (total / number).to(scale.dtype).reshape(scale.shape)
        found[Q] = (g_q + ratio * d_q).to(q.dtype)
        return [found[place] for place in wanted]

    def _gradient_of_q(self):
        d_q = new_like(self.inputs[Q])
        _core.backward(*self.inputs[:3], self.state, self.d_out, self.d_lse, {"q": d_q}, **self.keywords)
        return d_q
