"""Texts that are removed from a bundle, and texts that stay readable."""

import pytest

from rdzvctl.redaction import GONE, Anonymizer, Redactor

SECRET = "s3cr3tW0rd"
KEY = f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET}\nabc\n-----END RSA PRIVATE KEY-----"


@pytest.mark.parametrize(
    "text",
    [
        f"Authorization: Bearer {SECRET}",
        f"curl -H 'authorization: basic {SECRET}=='",
        f"HF_TOKEN={SECRET}",
        f"export DB_PASSWORD='{SECRET} {SECRET}'",
        f"environ({{'HOME': '/root', 'ANYTHING': '{SECRET}'}})",
        f'{{"api_key": "{SECRET}", "n": 1}}',
        f"connect(password={SECRET})",
        f"train.py --hf-token {SECRET} --lr 0.1",
        f"train.py --api-key={SECRET}",
        f"postgres://ada:{SECRET}@db/x",
        f"https://bucket/x?X-Amz-Signature={SECRET}",
        KEY,
        f"{SECRET}\n-----END RSA PRIVATE KEY-----\nthe end of a log",
        f"known to be one: {SECRET}",
    ],
)
def test_a_secret_is_taken_out(text: str) -> None:
    known = [SECRET] if text.startswith("known") else []
    for found in (Redactor(known).text(text), "\n".join(Redactor(known).value({"text": text.split("\n")})["text"])):
        assert SECRET not in found and GONE in found


@pytest.mark.parametrize(
    "secret",
    [
        "AKIAIOSFODNN7EXAMPLE",
        "ghp_0123456789abcdefghijABCDEFGHIJ012345",
        "hf_abcdefghijABCDEFGHIJ",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
        "0123456789abcdef0123456789abcdef",
        "Abcdefghij0123456789Abcdefghij0123456789",
    ],
)
def test_a_secret_is_known_by_its_form(secret: str) -> None:
    assert Redactor().text(f"logging in with {secret}.") == f"logging in with {GONE}."


@pytest.mark.parametrize(
    "text",
    [
        '  File "/home/ada/train.py", line 3, in main',
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has 79.11 GiB",
        "KeyError: 'weight'",
        "step 12: loss=3.25 max_tokens=4096 tokens: 512",
        "NCCL_DEBUG=INFO RANK=3 MASTER_ADDR=gpu1",
        "worker rank 1 on node gpu1 failed: exit code 1: ValueError: boom",
        "2026-01-02 03:04:05,678 INFO trainer: epoch=1",
    ],
)
def test_redaction_keeps_text_that_a_reader_needs(text: str) -> None:
    assert Redactor().text(text) == text


def test_a_field_that_is_called_a_secret_is_taken_out() -> None:
    found = Redactor().value({"token": "short", "run_id": "r", "nested": [{"password": "x"}]})
    assert found == {"token": GONE, "run_id": "r", "nested": [{"password": GONE}]}


def test_a_name_is_replaced_by_the_same_one_everywhere() -> None:
    texts = [
        "run big-model: worker rank 1 on node gpu7 failed: boom at train.py:3",
        '  File "/home/ada/llm/train.py", line 3, in main',
        "/logs/big-model/attempt_0/1/stderr.log of ada on gpu7.lab.example, ada@lab.example",
        "10.1.2.3:29400 and fe80::1, not 127.0.0.1 at 12:30:45, see http://gpu7.lab.example:29400/metrics",
    ]
    names = Anonymizer(run=["big-model"], node=["gpu7", "gpu8"], host=["gpu7.lab.example"])
    for text in texts:
        names.learn(text)
    found = [names.text(text) for text in texts]
    assert found[0] == "run run-1: worker rank 1 on node node-1 failed: boom at file-1.py:3"
    assert found[1].endswith('/file-1.py", line 3, in main') and found[1].startswith('  File "/home/user-1/')
    assert found[2].startswith("/logs/run-1/attempt_0/1/stderr.log of user-1 on host-1, user-1@host-")
    assert found[3].startswith("address-1:29400 and address-2, not 127.0.0.1 at 12:30:45, see http://host-1:29400/")
    for name in ("big-model", "ada", "gpu7", "llm", "lab.example", "10.1.2.3", "train"):
        assert not any(name in text for text in found), name


def test_short_names_are_replaced_without_harm_to_sentences() -> None:
    names = Anonymizer(node=["a"], run=["r"])
    assert names.text("run r waits for a node: node a is lost") == "run run-1 waits for a node: node node-1 is lost"
    assert names.value({"node_id": "a", "nodes": ["a"]}) == {"node_id": "node-1", "nodes": ["node-1"]}


def test_redaction_keeps_our_own_words_if_a_run_has_the_same_name() -> None:
    names = Anonymizer(run=["running"])
    assert names.value({"phase": "running", "run_id": "running"}) == {"phase": "running", "run_id": "run-1"}


def test_installed_packages_keep_their_names() -> None:
    path = "/opt/venv/lib/python3.12/site-packages/torch/nn/modules/module.py"
    assert Anonymizer().text(path).endswith("/lib/python3.12/site-packages/torch/nn/modules/module.py")


@pytest.mark.timeout(40)
@pytest.mark.parametrize("part", ["-", "a.", "a-", "A=", "eyJ", ",/", "a://"])
def test_the_time_to_clean_a_word_grows_only_with_its_length(part: str) -> None:
    """A worker may write anything. With the square of the length in the time, each of them takes minutes."""
    text = part * (65_536 // len(part))
    anonymizer = Anonymizer()
    anonymizer.learn(text)
    assert anonymizer.text(Redactor().text(text))
