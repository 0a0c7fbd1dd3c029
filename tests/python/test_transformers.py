# SPDX-License-Identifier: Apache-2.0
"""attn_implementation="qkv" in models of transformers, against "eager" on small random weights."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import qkv.torch  # noqa: E402


def models():
    import transformers

    small = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
             "intermediate_size": 48, "max_position_embeddings": 64}
    grouped = {**small, "num_key_value_heads": 2}
    quiet = {"attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0}
    yield "bert", transformers.BertConfig(**small, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0), "BertForMaskedLM"
    yield "gpt2", transformers.GPT2Config(vocab_size=97, n_embd=32, n_layer=2, n_head=4, n_positions=64, **quiet), "GPT2LMHeadModel"
    yield "llama", transformers.LlamaConfig(**grouped), "LlamaForCausalLM"
    yield "mistral", transformers.MistralConfig(**grouped, sliding_window=5), "MistralForCausalLM"
    yield "gemma2", transformers.Gemma2Config(**grouped, head_dim=8, sliding_window=5, attn_logit_softcapping=5.0), "Gemma2ForCausalLM"
    yield "gpt_oss", transformers.GptOssConfig(**grouped, head_dim=8, sliding_window=5, num_local_experts=2,
                                               num_experts_per_tok=1), "GptOssForCausalLM"


def pair_of(config, name):
    """The same random weights under "eager" and under "qkv"."""
    import transformers

    qkv.torch.register_with_transformers()
    torch.manual_seed(0)
    eager = getattr(transformers, name)._from_config(config, attn_implementation="eager").eval()
    ours = getattr(transformers, name)._from_config(config, attn_implementation="qkv").eval()
    ours.load_state_dict(eager.state_dict())
    assert ours.config._attn_implementation == "qkv"
    return eager, ours


IDS = torch.randint(3, 97, (2, 11), generator=torch.Generator().manual_seed(1))
LEFT = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1], [1] * 11])


@pytest.mark.parametrize("which", ["bert", "gpt2", "llama", "mistral", "gemma2", "gpt_oss"])
def test_transformers_models(which):
    config, name = next((config, name) for key, config, name in models() if key == which)
    eager, ours = pair_of(config, name)
    for mask in (None, LEFT, LEFT.flip(-1)):
        a, b = (model(IDS, attention_mask=mask, labels=IDS) for model in (ours, eager))
        seen = slice(None) if mask is None else mask.bool()
        torch.testing.assert_close(a.logits[seen], b.logits[seen], rtol=1e-4, atol=1e-5)
    a.loss.backward()
    b.loss.backward()
    for (parameter, x), (_, y) in zip(ours.named_parameters(), eager.named_parameters()):
        if y.grad is not None:
            torch.testing.assert_close(x.grad, y.grad, rtol=1e-3, atol=1e-5, msg=lambda text: f"{parameter}: {text}")
    if which != "bert":
        for mask in (None, LEFT):
            tokens = [model.generate(IDS, attention_mask=mask, max_new_tokens=12, do_sample=False, pad_token_id=0)
                      for model in (ours, eager)]
            assert torch.equal(*tokens)
