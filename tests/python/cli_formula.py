# SPDX-License-Identifier: Apache-2.0
"""docs/semantics.md in NumPy, f64, with every Tq x Tk array written out. Nothing of qkv is used."""

import numpy as np

MASK64 = (1 << 64) - 1


# ---- Dropout: the counter-based generator, in Python's integers

def mix64(x):
    x = (x + 0x9E3779B97F4A7C15) & MASK64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK64
    return x ^ (x >> 31)


def mix32(x, multiplier, shift):
    return ((x ^ (x >> shift)) * multiplier) & 0xFFFFFFFF


def drops(seed, p, b, h, position, j):
    key = mix64(seed)
    for part in (b, h, position):
        key = mix64(key ^ (part & MASK64))
    x = ((j ^ key) & 0xFFFFFFFF) + ((j >> 32) * 0x9E3779B9)
    x = mix32(mix32(x & 0xFFFFFFFF, 0x21F0AAAD, 16), 0x735A2D97, 15) ^ (key >> 32)
    x = mix32(mix32(x, 0x21F0AAAD, 15), 0x735A2D97, 15)
    return (x ^ (x >> 15)) < round(p * 2**32)


# ---- Relative positions: T5's rule, floors taken in integers

def bucket(distance, buckets, rule, max_distance):
    """Of the distance query position - key position."""
    first = 0
    if rule == "bidirectional":
        buckets //= 2
        if distance < 0:
            first, distance = buckets, -distance
    else:
        distance = max(distance, 0)
    exact = buckets // 2
    if distance < exact:
        return first + distance
    # The largest n with (distance / exact)^(buckets - exact) >= (max_distance / exact)^n.
    rest, n = buckets - exact, 0
    while n < rest - 1 and distance**rest * exact**(n + 1) >= max_distance**(n + 1) * exact**rest:
        n += 1
    return first + exact + n


# ---- The operation on one batch of four axes

class Problem:
    def __init__(self, tensors, causal=None, window=(None, None), offset=0, scale=None, softcap=0.0, dropout=0.0,
                 seed=0, block=None, buckets=None, max_distance=128, batch=0):
        """`batch`: the number of the first batch entry, which dropout counts."""
        self.__dict__.update({key: value for key, value in locals().items() if key not in ("self", "tensors")})
        self.t = {name: np.asarray(array, np.float64) if np.asarray(array).dtype.kind in "fV" else np.asarray(array)
                  for name, array in tensors.items()}
        q, k = self.t["q"], self.t["k"]
        self.B, self.H, self.Tq, self.D = q.shape
        self.Tk = k.shape[2]
        self.group = self.H // k.shape[1]
        if scale is None:
            self.scale = 1 / np.sqrt(self.D) if self.D else 1.0
        place = {"top_left": 0, "bottom_right": self.Tk - self.Tq}.get(causal, causal)
        offsets = self.t["offsets"] if "offsets" in self.t else np.full(self.B, place if causal is not None else offset)
        self.position = np.arange(self.Tq)[None, :] + offsets[:, None]  # [B, Tq]
        self.distance = (self.position[:, :, None] - np.arange(self.Tk))[:, None]  # [B, 1, Tq, Tk]

    def visible(self):
        shape = (self.B, self.H, self.Tq, self.Tk)
        i, j = np.arange(self.Tq)[:, None], np.arange(self.Tk)[None, :]
        seen = np.ones(shape, bool)
        if self.causal is not None:
            seen &= self.distance >= 0
        left, right = self.window
        seen &= np.ones(shape, bool) if left is None else self.distance <= left
        seen &= np.ones(shape, bool) if right is None else -self.distance <= right
        if "key_lengths" in self.t:
            seen &= j < self.t["key_lengths"][:, None, None, None]
        if "query_lengths" in self.t:
            seen &= i < self.t["query_lengths"][:, None, None, None]
        if "mask" in self.t:
            seen &= self.t["mask"] != 0
        if "query_segment" in self.t:
            seen &= self.t["query_segment"][:, None, :, None] == self.t["key_segment"][:, None, None, :]
        if "block_mask" in self.t:
            seen &= (self.t["block_mask"] != 0)[..., i // self.block[0], j // self.block[1]]
        if "bias" in self.t:
            seen &= self.t["bias"] != -np.inf
        return seen

    def table_buckets(self):
        count = self.t["table"].shape[1]
        values, index = np.unique(self.distance, return_inverse=True)
        found = np.array([bucket(int(d), count, self.buckets, self.max_distance) for d in values])
        return np.broadcast_to(found[index].reshape(self.distance.shape), (self.B, self.H, self.Tq, self.Tk))

    def keep(self):
        factor = np.ones((self.B, self.H, self.Tq, self.Tk))
        if self.dropout:
            for b, h, i, j in np.ndindex(factor.shape):
                dropped = drops(self.seed, self.dropout, b + self.batch, h, int(self.position[b, i]), j)
                factor[b, h, i, j] = 0 if dropped else 1 / (1 - self.dropout)
        return factor

    def forward(self):
        """out, lse, weights; keeps what the gradients need."""
        k, v = (np.repeat(self.t[name], self.group, 1) for name in "kv")
        self.dot = np.einsum("bhid,bhjd->bhij", self.t["q"], k)
        self.capped = self.scale * self.dot
        if self.softcap:
            self.capped = self.softcap * np.tanh(self.capped / self.softcap)
        s = self.capped + self.t.get("bias", 0.0)
        if "slopes" in self.t:
            s = s - self.t["slopes"][:, None, None] * np.abs(self.distance)
        if "table" in self.t:
            s = s + self.t["table"][np.arange(self.H)[:, None, None], self.table_buckets()]
        s = np.where(self.visible(), s, -np.inf)
        sinks = self.t["sinks"][None, :, None] if "sinks" in self.t else -np.inf
        m = np.maximum(np.max(s, 3, initial=-np.inf), sinks)
        shift = np.where(np.isinf(m), 0, m)
        e = np.exp(s - shift[..., None])
        total = e.sum(3) + np.exp(sinks - shift)
        self.sink_weight = np.exp(sinks - shift) / np.where(total > 0, total, 1)
        self.weights = e / np.where(total > 0, total, 1)[..., None]
        self.lse = np.where(total > 0, shift + np.log(np.where(total > 0, total, 1)), -np.inf)
        self.factor = self.keep()
        self.out = np.einsum("bhij,bhjd->bhid", self.factor * self.weights, v)
        return {"out": self.out, "lse": self.lse, "weights": self.weights}

    def gradients(self):
        k, v = (np.repeat(self.t[name], self.group, 1) for name in "kv")
        d_out, a = self.t["d_out"], self.weights
        dP = self.factor * np.einsum("bhid,bhjd->bhij", d_out, v)
        delta = (a * dP).sum(3) - self.t.get("d_lse", 0.0)
        dS = a * (dP - delta[..., None])
        dC = dS * (1 - (self.capped / self.softcap)**2) if self.softcap else dS
        fold = lambda x: x.reshape(self.B, self.H // self.group, self.group, *x.shape[2:]).sum(2)  # noqa: E731
        result = {"d_q": self.scale * np.einsum("bhij,bhjd->bhid", dC, k),
                  "d_k": fold(self.scale * np.einsum("bhij,bhid->bhjd", dC, self.t["q"])),
                  "d_v": fold(np.einsum("bhij,bhid->bhjd", self.factor * a, d_out)),
                  "d_scale": np.array([(dC * self.dot).sum()])}
        if "bias" in self.t:
            axes = tuple(n for n in range(4) if self.t["bias"].shape[n] == 1)
            result["d_bias"] = dS.sum(axes, keepdims=True)
        if "slopes" in self.t:
            result["d_slopes"] = (-np.abs(self.distance) * dS).sum((0, 2, 3))
        if "sinks" in self.t:
            result["d_sinks"] = -(self.sink_weight * delta).sum((0, 2))
        if "table" in self.t:
            result["d_table"] = np.zeros(self.t["table"].shape)
            heads = np.broadcast_to(np.arange(self.H)[:, None, None], dS.shape)
            np.add.at(result["d_table"], (heads, self.table_buckets()), dS)
        return result


def probes(weights):
    """Statistics of weights [B, H, Tq, Tk]."""
    logs = np.log(np.where(weights > 0, weights, 1))
    empty = ~(weights > 0).any(3) if weights.shape[3] else np.ones(weights.shape[:3], bool)
    top = weights.argmax(3) if weights.shape[3] else np.zeros(weights.shape[:3], int)
    return {"row_entropy": -(weights * logs).sum(3), "row_max": weights.max(3, initial=0),
            "row_top": np.where(empty, -1, top), "key_mass": weights.sum(2)}


def evaluate(tensors, upstream=False, **options):
    """All results by name, for four axes, fewer, or packed sequences."""
    tensors = {name: np.asarray(array) for name, array in tensors.items()}
    if "query_starts" in tensors:
        return packed(tensors, upstream, **options)
    rank = tensors["q"].ndim
    lead = (np.newaxis,) * (4 - rank)
    spread = {"q", "k", "v", "d_out", "bias", "mask", "block_mask"}
    full = {name: array[lead] if array.ndim == rank and name in spread else array for name, array in tensors.items()}
    if "d_lse" in full:
        full["d_lse"] = full["d_lse"][lead]
    one = Problem(full, **options)
    result = one.forward()
    result.update(probes(result["weights"]))
    if upstream:
        result.update(one.gradients())
    squeezed = {name: array.reshape(array.shape[4 - rank:]) if name in SQUEEZED else array
                for name, array in result.items()}
    if "d_bias" in squeezed:
        squeezed["d_bias"] = squeezed["d_bias"].reshape(tensors["bias"].shape)
    return squeezed


SQUEEZED = {"out", "lse", "weights", "d_q", "d_k", "d_v", "row_entropy", "row_max", "row_top", "key_mass"}


def packed(tensors, upstream, **options):
    """Sequence by sequence; the results joined along rows, which come first."""
    rows = {"q": 0, "d_out": 0, "d_lse": 0, "k": 1, "v": 1}
    starts = tensors["query_starts"], tensors["key_starts"]
    pieces = []
    for b in range(len(starts[0]) - 1):
        part = {name: array[starts[rows[name]][b]:starts[rows[name]][b + 1]].swapaxes(0, 1)[None]
                for name, array in tensors.items() if name in rows}
        part.update({name: tensors[name] for name in ("slopes", "sinks", "table") if name in tensors})
        if "offsets" in tensors:
            part["offsets"] = tensors["offsets"][b:b + 1]
        one = Problem(part, batch=b, **options)
        result = one.forward()
        result.update(probes(result.pop("weights")))
        if upstream:
            result.update(one.gradients())
        pieces.append(result)
    joined = {}
    for name in pieces[0]:
        parts = [piece[name] for piece in pieces]
        if name in SQUEEZED:
            joined[name] = np.concatenate([part[0].swapaxes(0, 1) for part in parts])
        else:
            joined[name] = sum(parts)
    return joined
