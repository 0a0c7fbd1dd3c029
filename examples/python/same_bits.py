# SPDX-License-Identifier: Apache-2.0
"""The same bits for any number of threads, in a batch or alone, all at once or in chunks: outputs and gradients.

    python examples/python/same_bits.py [T]
"""

import hashlib
import sys

import numpy as np

import qkv


def digest(*arrays):
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()[:16]


def main(T=1000):
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((4, 2, T, 64), np.float32) for _ in range(3))
    want = qkv.attention(q, k, v, causal="bottom_right")
    digests = {}
    for threads in (1, 2, 3, 8):
        digests[f"{threads} threads"] = digest(qkv.attention(q, k, v, causal="bottom_right", threads=threads))
    alone = [qkv.attention(q[b], k[b], v[b], causal="bottom_right") for b in range(4)]
    digests["each batch entry alone"] = digest(np.stack(alone))
    cuts = [0, 1, T // 3, T // 2 + 1, T]
    chunks = [qkv.attention(q[:, :, a:b], k[:, :, :b], v[:, :, :b], causal="bottom_right") for a, b in zip(cuts, cuts[1:])]
    digests["queries in four chunks"] = digest(np.concatenate(chunks, axis=2))
    for name, found in digests.items():
        print(f"output    {found}  {name}")
    gradients = {}
    for threads in (1, 2, 8):
        found = qkv.attention_grad(q, k, v, want, causal="bottom_right", threads=threads)
        gradients[threads] = digest(found["d_q"], found["d_k"], found["d_v"])
        print(f"gradients {gradients[threads]}  {threads} threads")
    return {digest(want), *digests.values()}, set(gradients.values())


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
