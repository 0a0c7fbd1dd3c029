# SPDX-License-Identifier: Apache-2.0
"""Language models from Hugging Face folders: logits, generation, sentence embeddings."""

import queue
import threading
from typing import Any, Dict, Iterator, List, Optional, Sequence, Union

import numpy as np

from qkv import _core

Ids = Sequence[int]
Prompt = Union[str, Ids]


def as_ids(tokens, name):
    """A list of ids from a list or an array of one axis."""
    array = np.asarray(tokens)
    if array.ndim != 1 or array.size and array.dtype.kind not in "iu":
        raise TypeError(f"{name}: expected token ids, a list or an array of one axis, got {tokens!r:.80}")
    return array.tolist()


def is_one(prompt):
    """One sequence, not several: a text, an array of one axis, or a list of ids. An empty list is no sequences."""
    if isinstance(prompt, str):
        return True
    if hasattr(prompt, "ndim"):
        return prompt.ndim == 1
    return len(prompt) > 0 and (isinstance(prompt[0], int) or getattr(prompt[0], "ndim", None) == 0)


class Transformer:
    """A model with its weights and tokenizer. Calls may run in several threads at once, without the interpreter's lock.

    Results do not depend on threads, on other sequences of a call, or on the key/value cache, bit by bit.
    """

    def __init__(self, core: "_core.LanguageModel") -> None:
        self._core = core

    @classmethod
    def from_pretrained(cls, folder: str, *, dtype: str = "float32", threads: int = 0) -> "Transformer":
        """Reads a Hugging Face folder: config.json, model.safetensors or its shards, and tokenizer.json where there is one.

        `dtype`: "float32" or "bfloat16", of weights and activations. `threads`: 0 is all CPUs the process may use.
        Raises OSError for a missing file, ValueError for a model or a value that is not supported.
        """
        return cls(_core.LanguageModel.open(str(folder), dtype, threads))

    @property
    def tokenizer(self) -> Optional["_core.Tokenizer"]:
        return self._core.tokenizer

    @property
    def config(self) -> Dict[str, Any]:
        """model_type, kind ("encoder", "decoder", "encoder-decoder"), vocabulary, width, layers, heads, ..."""
        return self._core.describe()

    def logits(self, tokens, decoder_tokens=None) -> Union[np.ndarray, List[np.ndarray]]:
        """Logits [T, vocabulary], float32, of the ids of a sequence, or a list of them for a list of sequences.

        Of an encoder through its masked-language-model head; of an encoder-decoder those of `decoder_tokens`, which begin
        with its start token.
        """
        one = is_one(tokens)
        sequences = [as_ids(ids, "tokens") for ids in ([tokens] if one else tokens)]
        decoders = None
        if decoder_tokens is not None:
            decoders = [as_ids(ids, "decoder_tokens") for ids in ([decoder_tokens] if one else decoder_tokens)]
        rows = self._core.logits(sequences, decoders)
        if one:
            return rows
        lengths = [len(ids) for ids in (decoders or sequences)]
        return np.split(rows, np.cumsum(lengths)[:-1]) if lengths else []

    def embed(self, texts: Union[str, Sequence[str]]) -> np.ndarray:
        """Sentence embeddings [N, width], float32, as the folder's sentence-transformers files say; of one text [width]."""
        if isinstance(texts, str):
            return self._core.embed([texts])[0]
        return self._core.embed(list(texts))

    def generate(self, prompt: Union[Prompt, Sequence[Prompt]], max_tokens: int, *, temperature: float = 0.0,
                 top_k: int = 0, top_p: float = 1.0, min_p: Optional[float] = None,
                 repetition_penalty: Optional[float] = None, seed: int = 0, beams: Optional[int] = None,
                 stop: Union[str, Sequence[str]] = (), draft: Optional["Transformer"] = None, stream: bool = False,
                 details: bool = False) -> Any:
        """What follows a prompt: a text, or ids; several prompts are one batch.

        A text gives a text, ids give ids, a list of either a list. Temperature 0 takes the largest logit. What is None
        comes from the folder's generation_config.json, end tokens and stop texts too. `draft`: a smaller model that
        proposes tokens; the result is the same. details=True gives dicts of tokens, text and finish ("length", "end",
        "stop") instead. stream=True gives an iterator over the pieces of one prompt's text, or its ids, as they come;
        leaving it ends the computation.
        """
        one = is_one(prompt)
        prompts = [prompt] if one else list(prompt)
        of_text = [isinstance(one_prompt, str) for one_prompt in prompts]
        ids = [self._core.prompt(p) if text else as_ids(p, "prompt") for p, text in zip(prompts, of_text)]
        options = {"max_tokens": max_tokens, "temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p,
                   "repetition_penalty": repetition_penalty, "seed": seed, "beams": beams,
                   "stop": [stop] if isinstance(stop, str) else list(stop),
                   "draft": None if draft is None else draft._core}
        if stream:
            if not one:
                raise ValueError(f"stream: expected one prompt, got {len(prompts)}")
            return self._stream(ids, options, of_text[0])
        results = self._core.generate(ids, on_piece=None, **options)
        if not details:
            results = [result["text" if text else "tokens"] for result, text in zip(results, of_text)]
        return results[0] if one else results

    def _stream(self, ids, options, of_text) -> Iterator[Any]:
        pieces: "queue.SimpleQueue" = queue.SimpleQueue()
        left = threading.Event()

        def on_piece(_, token, text):
            if of_text and text or not of_text and token is not None:
                pieces.put(("piece", text if of_text else token))
            return not left.is_set()

        def work():
            try:
                self._core.generate(ids, on_piece=on_piece, **options)
                pieces.put(("end", None))
            except BaseException as error:  # belongs to whoever waits for the pieces
                pieces.put(("error", error))

        worker = threading.Thread(target=work, daemon=True)
        worker.start()
        try:
            while True:
                kind, value = pieces.get()
                if kind == "error":
                    raise value
                if kind == "end":
                    return
                yield value
        finally:
            left.set()
            worker.join()
