# SPDX-License-Identifier: Apache-2.0
"""qkv generate by its own promises, on random models: batches, drafts, seeds, text, errors."""

import json
import os
import pty
import shutil
import subprocess

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import generation_models as models  # noqa: E402


@pytest.fixture(scope="session", params=models.NAMES)
def folder(request, tmp_path_factory):
    path = tmp_path_factory.mktemp(request.param)
    models.make(request.param).save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def gpt2(tmp_path_factory):
    path = tmp_path_factory.mktemp("gpt2")
    models.make("gpt2").save_pretrained(path)
    (path / "tokenizer.json").write_text(json.dumps(byte_tokenizer()))
    return path


def byte_tokenizer():
    """Bytes that are letters, as the first tokens; one special token."""
    letters = [chr(c) for c in range(ord("!"), ord("!") + models.VOCABULARY - 3)]
    # The sign of the euro in pieces, a blank, and an end.
    letters[:4] = ["Ġ", "â", "Ĥ", "¬"]
    vocabulary = {"<pad>": 0, "<s>": 1, "</s>": 2, **{letter: n + 3 for n, letter in enumerate(letters)}}
    special = [{"id": n, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                "special": True} for text, n in list(vocabulary.items())[:3]]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": None,
            "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level,
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                      "vocab": vocabulary, "merges": []}}


def text_of(ids):
    vocabulary = {n: token for token, n in byte_tokenizer()["model"]["vocab"].items()}
    special = {"Ġ": b" ", "â": b"\xe2", "Ĥ": b"\x82", "¬": b"\xac"}
    text = b"".join(special.get(vocabulary[n], vocabulary[n].encode()) for n in ids if n > 2)
    return text.decode(errors="replace")


def ids_of(prompt):
    return " ".join(map(str, prompt))


def objects(done):
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture
def one(qkv):
    def call(folder, prompt, *options, **keywords):
        return objects(qkv("generate", "--model", folder, "--tokens", ids_of(prompt), "--json", *options, **keywords))[0]

    return call


CHOICES = [[], ["--temperature", "0.9", "--seed", "5"],
           ["--temperature", "1.4", "--top-k", "9", "--top-p", "0.9", "--min-p", "0.02", "--repetition-penalty", "1.2"],
           ["--beams", "3"]]


@pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: "-".join(choice) or "greedy")
def test_a_ragged_batch_is_each_prompt_alone(folder, qkv, one, tmp_path, choice):
    prompts = models.prompts(4, 7) + [models.prompts(1, 7)[0][:1]]
    prompts += [prompts[0] * 3 + [5], prompts[0] * 3 + [6, 7]]  # long enough to share their beginning
    (tmp_path / "prompts").write_text("".join(ids_of(prompt).replace(" ", ", ") + "\n" for prompt in prompts))
    batch = objects(qkv("generate", "--model", folder, "--prompts", "prompts", "--max-tokens", 9, "--json", *choice))
    assert batch == [one(folder, prompt, "--max-tokens", 9, *choice) for prompt in prompts]


@pytest.mark.parametrize("choice", CHOICES[:3], ids=lambda choice: "-".join(choice) or "greedy")
def test_a_draft_changes_nothing(folder, one, tmp_path, choice):
    name = json.loads((folder / "config.json").read_text())["model_type"]
    other = models.make(name)
    with torch.no_grad():  # nearly the same model, so that some proposals are right
        for value in other.parameters():
            value.add_(0.02 * torch.randn(value.shape))
    other.save_pretrained(tmp_path / "draft")
    for prompt in models.prompts(3, 8):
        alone = one(folder, prompt, "--max-tokens", 15, *choice)
        assert one(folder, prompt, "--max-tokens", 15, "--draft", tmp_path / "draft", *choice) == alone


def test_seeds_decide_draws_and_threads_do_not(gpt2, one):
    prompt, options = [5, 6, 7], ["--max-tokens", 30, "--temperature", "1.5"]
    results = [one(gpt2, prompt, *options, "--seed", seed)["tokens"] for seed in (1, 2, 1)]
    assert results[0] == results[2] != results[1]
    assert one(gpt2, prompt, *options, "--seed", 1, "--threads", 1)["tokens"] == results[0]


def test_copies_of_a_prompt_have_draws_of_their_own(gpt2, qkv, tmp_path):
    (tmp_path / "prompts").write_text("5 6\n5 6\n")
    a, b = objects(qkv("generate", "--model", gpt2, "--prompts", "prompts", "--max-tokens", 30, "--temperature", "1.5",
                       "--json"))
    assert a["tokens"] != b["tokens"]


def test_top_k_of_one_is_greedy(gpt2, one):
    greedy = one(gpt2, [9, 8], "--max-tokens", 12)
    assert one(gpt2, [9, 8], "--max-tokens", 12, "--temperature", "2", "--top-k", 1) == greedy
    assert one(gpt2, [9, 8], "--max-tokens", 12, "--temperature", "2", "--top-p", 0) == greedy
    assert one(gpt2, [9, 8], "--max-tokens", 12, "--temperature", "2", "--min-p", 1) == greedy


def test_text_is_that_of_the_tokens(gpt2, qkv, one):
    for seed in range(20):
        options = ["--max-tokens", 40, "--temperature", 2, "--seed", seed]
        result = one(gpt2, [9, 8, 7], *options)
        assert result["text"] == text_of(result["tokens"])
        text = qkv("generate", "--model", gpt2, "--prompt", text_of([9, 8, 7]), *options).stdout
        assert text == result["text"] + "\n"


def test_a_stop_text_ends_across_tokens(gpt2, one):
    for choice in (["--temperature", 2, "--seed", 3], ["--beams", 2], []):
        free = one(gpt2, [9, 8, 7], "--max-tokens", 40, *choice)
        stop = free["text"][5:8]
        at = free["text"].index(stop)
        for flags in (["--stop", stop], ["--stop", "not there", "--stop", stop]):
            result = one(gpt2, [9, 8, 7], "--max-tokens", 40, *choice, *flags)
            assert result["finish"] == "stop"
            if choice[:1] == ["--beams"]:
                assert stop not in result["text"]
                continue
            assert result["text"] == free["text"][:at]
            assert result["tokens"] == free["tokens"][:len(result["tokens"])]
            assert text_of(result["tokens"]).endswith(stop)


def test_the_prompt_may_come_from_a_file(gpt2, qkv, tmp_path):
    (tmp_path / "prompt").write_text("ABC")
    from_file = qkv("generate", "--model", gpt2, "--prompt-file", "prompt", "--max-tokens", 5)
    assert from_file.stdout == qkv("generate", "--model", gpt2, "--prompt", "ABC", "--max-tokens", 5).stdout


def test_ids_in_ids_out(gpt2, qkv, one):
    result = one(gpt2, [9, 8], "--max-tokens", 6)
    assert qkv("generate", "--model", gpt2, "--tokens", "9,8", "--max-tokens", 6).stdout == ids_of(result["tokens"]) + "\n"


def test_without_a_tokenizer_there_is_no_text(folder, one):
    assert one(folder, [9, 8], "--max-tokens", 3)["text"] is None


def test_it_stops_at_the_end_of_a_position_table(gpt2, one, qkv):
    result = one(gpt2, [5] * 60, "--max-tokens", 100, "--temperature", "3")
    assert len(result["tokens"]) <= 4 and (result["finish"] == "end" or len(result["tokens"]) == 4)
    assert one(gpt2, [5] * 64, "--max-tokens", 100) == {"tokens": [], "text": "", "finish": "length"}
    done = qkv("generate", "--model", gpt2, "--tokens", ids_of([5] * 65), "--max-tokens", 1, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "65 tokens, the model has positions for 64" in done.stderr


def test_a_long_prompt_is_read_in_passes(tmp_path, one):
    model = models.make("llama")
    model.save_pretrained(tmp_path / "llama")
    prompt = models.prompts(1, 9)[0] * 60
    assert len(prompt) > 600
    assert one(tmp_path / "llama", prompt, "--max-tokens", 8)["tokens"] == models.generate(model, prompt, 8,
                                                                                           do_sample=False)


def test_an_empty_prompt_begins_with_the_first_token(gpt2, qkv, one):
    text = qkv("generate", "--model", gpt2, "--prompt", "", "--max-tokens", 6).stdout
    assert text == one(gpt2, [1], "--max-tokens", 6)["text"] + "\n"


WRONG = [
    (2, "none", []),
    (2, "several", ["--tokens", "5", "--prompt", "A"]),
    (2, "--max-tokens", ["--tokens", "5", "--max-tokens", "-1"]),
    (2, "--tokens: expected token ids", ["--tokens", ""]),
    (2, "'x'", ["--tokens", "5 x"]),
    (2, "token 61 is not in the vocabulary of 61", ["--tokens", "5 61"]),
    (2, "--temperature", ["--tokens", "5", "--temperature", "-1"]),
    (2, "--top-k", ["--tokens", "5", "--top-k", "-1"]),
    (2, "--top-p", ["--tokens", "5", "--top-p", "1.5"]),
    (2, "--min-p", ["--tokens", "5", "--min-p", "nan"]),
    (2, "--repetition-penalty", ["--tokens", "5", "--repetition-penalty", "0"]),
    (2, "--beams", ["--tokens", "5", "--beams", "0"]),
    (2, "--temperature exclude", ["--tokens", "5", "--beams", "2", "--temperature", "1"]),
    (2, "--draft exclude", ["--tokens", "5", "--beams", "2", "--draft", "."]),
    (2, "stop", ["--tokens", "5", "--stop", ""]),
    (1, "cannot open", ["--prompt-file", "missing"]),
    (1, "cannot open", ["--prompts", "missing"]),
    (1, "config.json", ["--tokens", "5", "--draft", "missing"]),
]


@pytest.mark.parametrize("code, text, options", WRONG, ids=[text or "?" for _, text, _ in WRONG])
def test_wrong_calls_are_one_line(gpt2, qkv, code, text, options):
    options = options if "--max-tokens" in options else [*options, "--max-tokens", 3]
    done = qkv("generate", "--model", gpt2, *options, check=False)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith("qkv: error: ") and done.stderr.count("\n") == 1
    assert text in done.stderr


def test_prompts_name_the_line_that_is_wrong(gpt2, qkv, tmp_path):
    for content, text in (("5\n\n6\n", "line 2: expected token ids"), ("5\n6 7 -1\n", "line 2"), ("", "empty file"),
                          ("5\n99\n", "line 2: token 99 is not in the vocabulary")):
        (tmp_path / "prompts").write_text(content)
        done = qkv("generate", "--model", gpt2, "--prompts", "prompts", "--max-tokens", 3, check=False)
        assert done.returncode == 2 and text in done.stderr


def test_invalid_utf8_in_a_prompt_file(gpt2, qkv, tmp_path):
    (tmp_path / "prompt").write_bytes(b"ABC\xff")
    done = qkv("generate", "--model", gpt2, "--prompt-file", "prompt", "--max-tokens", 3, check=False)
    assert done.returncode == 2 and "byte 4" in done.stderr


def test_values_of_generation_config_that_are_not_supported(gpt2, qkv, tmp_path):
    shutil.copytree(gpt2, tmp_path / "model")
    config = json.loads((gpt2 / "generation_config.json").read_text())
    call = ["generate", "--model", tmp_path / "model", "--tokens", "5", "--max-tokens", 3]
    for values, options, code in (({"guidance_scale": 2.0}, [], 2), ({"novelty": 1}, [], 2), ({"typical_p": 0.5}, [], 0),
                                  ({"typical_p": 0.5}, ["--temperature", 1], 2), ({"num_beams": 2}, [], 0),
                                  ({"num_beams": 2}, ["--temperature", 1], 2),
                                  ({"num_beams": 2}, ["--temperature", 1, "--beams", 1], 0),
                                  ({"do_sample": True, "temperature": 0.1, "top_k": 1, "top_p": 0.1}, [], 0)):
        (tmp_path / "model" / "generation_config.json").write_text(json.dumps({**config, **values}))
        done = qkv(*call, *options, check=False)
        assert done.returncode == code, done.stderr
        assert code == 0 or next(iter(values)) in done.stderr


def test_a_missing_model_is_the_machines_fault(qkv):
    assert qkv("generate", "--model", "missing", "--tokens", "5", "--max-tokens", 3, check=False).returncode == 1


def test_an_encoder_generates_nothing(qkv, tmp_path):
    import transformers

    transformers.BertConfig(vocab_size=30, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
                            intermediate_size=16).save_pretrained(tmp_path / "bert")
    done = qkv("generate", "--model", tmp_path / "bert", "--tokens", "5", "--max-tokens", 3, check=False)
    assert done.returncode == 2 and "encoder" in done.stderr


def on_terminal(command):
    """What a command writes when standard output and standard error are terminals of their own."""
    masters, slaves = zip(pty.openpty(), pty.openpty())
    with subprocess.Popen(command, stdout=slaves[0], stderr=slaves[1]) as process:
        for slave in slaves:
            os.close(slave)
        written = []
        for master in masters:
            chunks = []
            while True:
                try:
                    chunk = os.read(master, 4096)
                except OSError:  # the other side has closed
                    break
                if not chunk:
                    break
                chunks.append(chunk)
            written.append(b"".join(chunks).decode().replace("\r\n", "\n"))
            os.close(master)
    assert process.returncode == 0
    return written


def test_a_long_prompt_shows_how_far_it_is_on_a_terminal_alone(program, tmp_path, qkv):
    models.make("llama").save_pretrained(tmp_path / "llama")
    (tmp_path / "llama" / "tokenizer.json").write_text(json.dumps(byte_tokenizer()))
    command = [program, "generate", "--model", str(tmp_path / "llama"), "--prompt", "ABCD" * 300, "--max-tokens", "5"]
    out, err = on_terminal(command)
    assert err == ("\rreading the prompt: 512 of 1200 tokens\rreading the prompt: 1024 of 1200 tokens"
                   "\rreading the prompt: 1199 of 1200 tokens\r\x1b[K")
    assert out == qkv(*command[1:]).stdout  # which also says that standard error stays empty elsewhere
