"""Nothing that goes into a report may hold a credential or a home folder (texts as people have them)."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from fuseproof.harness.machine.redaction import REDACTED, allowed_variables, may_be_recorded, redact, redact_mapping

HOME = "/home/anna"


@pytest.fixture(autouse=True)
def _home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", HOME)
    for name in ("HF_TOKEN", "MY_API_KEY", "DB_PASSWORD"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("recorded", "name"),
    [
        (True, "CUDA_VISIBLE_DEVICES"),
        (True, "TORCHINDUCTOR_CACHE_DIR"),
        (True, "TORCH_LOGS"),
        (True, "TRITON_INTERPRET"),
        (True, "NCCL_DEBUG"),
        (True, "PYTORCH_CUDA_ALLOC_CONF"),
        (True, "PYTORCH_ALLOC_CONF"),
        (True, "OMP_NUM_THREADS"),
        (True, "MKL_NUM_THREADS"),
        (True, "PYTHONHASHSEED"),
        (True, "FUSEPROOF_CACHE"),
        (True, "SGLANG_CACHE_DIT_ENABLED"),
        (True, "HF_HUB_OFFLINE"),
        (False, "HF_TOKEN"),
        (False, "HUGGING_FACE_HUB_TOKEN"),
        (False, "FUSEPROOF_API_KEY"),
        (False, "SGLANG_SECRET"),
        (False, "TORCH_HUB_PASSWORD"),
        (False, "CUDA_ACCESS_KEY_ID"),
        (False, "sglang_token"),
        (False, "AWS_SECRET_ACCESS_KEY"),
        (False, "PATH"),
        (False, "HOME"),
        (False, "SSH_CONNECTION"),
    ],
)
def test_variables_are_recorded_by_allow_list(recorded: bool, name: str) -> None:
    assert recorded is may_be_recorded(name)


def test_allowed_variables_are_sorted_and_redacted() -> None:
    variables = {"TORCH_HOME": f"{HOME}/torch", "CUDA_VISIBLE_DEVICES": "", "HF_TOKEN": "hf_abcdefghijklmnopqrst"}
    assert [("CUDA_VISIBLE_DEVICES", ""), ("TORCH_HOME", "~/torch")] == list(allowed_variables(variables).items())


@pytest.mark.parametrize(
    ("expected", "text"),
    [
        pytest.param("~/models/x", f"{HOME}/models/x", id="home"),
        pytest.param("~", HOME, id="home alone"),
        pytest.param("in ~.", f"in {HOME}.", id="end of a sentence"),
        pytest.param("--output=~/x '~/y'", f"--output={HOME}/x '{HOME}/y'", id="flag and quotes"),
        pytest.param("cc -I~/include", f"cc -I{HOME}/include", id="glued to a flag"),
        pytest.param("file://~/x", f"file://{HOME}/x", id="file url"),
        pytest.param("/home/annabel/x", "/home/annabel/x", id="longer name"),
        pytest.param("/home/anna-2/x", "/home/anna-2/x", id="name with a dash"),
        pytest.param("/home/anna.old/x", "/home/anna.old/x", id="name with a dot"),
        pytest.param("/mnt/home/anna/x", "/mnt/home/anna/x", id="inside a longer path"),
        pytest.param(f"x {REDACTED} y", "x hf_AbCdEfGhIjKlMnOpQrStUv y", id="hugging face token"),
        pytest.param(f"{REDACTED}", "ghp_AbCdEfGhIjKlMnOpQrStUv0123456789", id="github token"),
        pytest.param(f"{REDACTED}", "sk-AbCdEfGhIjKlMnOpQrStUv0123", id="api key"),
        pytest.param(f"Authorization: Bearer {REDACTED}", "Authorization: Bearer abc.def", id="bearer"),
        pytest.param(f"https://{REDACTED}@host/x", "https://anna:pw@host/x", id="credentials in a url"),
        pytest.param(f"https://h/x?a=1&token={REDACTED}&b=2", "https://h/x?a=1&token=zzz&b=2", id="query"),
        pytest.param(f"--hf-token {REDACTED} --seed 1", "--hf-token zzz --seed 1", id="flag and value"),
        pytest.param(f"--token={REDACTED}", "--token=zzz", id="flag with ="),
        pytest.param(f"HF_TOKEN={REDACTED} fuseproof", "HF_TOKEN=zzz fuseproof", id="variable in a command"),
        pytest.param("--text-tokens=512 tokenizer=x", "--text-tokens=512 tokenizer=x", id="token as a word of ours"),
        pytest.param("a secret garden, key = blue", "a secret garden, key = blue", id="a prompt"),
        pytest.param("hf_hub_offline=1", "hf_hub_offline=1", id="hf_ as a prefix"),
    ],
)
def test_redact(expected: str, text: str) -> None:
    assert expected == redact(text)


@pytest.mark.parametrize("text", ["a_" * 5000, "--a-" * 5000, "a." * 5000, "x" * 20000, "eyJ" * 5000, f"{HOME}" * 2000])
def test_long_texts_cost_little(text: str) -> None:
    started_s = time.process_time()
    redact(text)
    assert time.process_time() - started_s < 0.5


def test_values_of_credential_variables_disappear_wherever_they_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_PASSWORD", "correct horse battery")
    monkeypatch.setenv("MY_API_KEY", "short")
    assert f"told {REDACTED}, in short" == redact("told correct horse battery, in short")


@pytest.mark.parametrize("home", ["/", "", "~"])
def test_a_root_home_is_nobodys_home(monkeypatch: pytest.MonkeyPatch, home: str) -> None:
    monkeypatch.setenv("HOME", home)
    assert "/usr/bin/env" == redact("/usr/bin/env")


def test_a_home_behind_a_link_is_found_by_both_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.setenv("HOME", str(tmp_path / "link"))
    assert "~/a ~/b" == redact(f"{tmp_path}/link/a {tmp_path}/real/b")


def test_redact_mapping_goes_to_any_depth_and_leaves_numbers_alone() -> None:
    given = {
        "path": Path(f"{HOME}/x"),
        f"{HOME}/key": None,
        "work": {"transformer_tokens": 4608, "hf_token": "zzz", "api_key": ["zzz"], "tokenizer": "t5"},
        "argv": ("run", f"{HOME}/m"),
        "finite": 1.5,
    }
    expected = {
        "path": "~/x",
        "~/key": None,
        "work": {"transformer_tokens": 4608, "hf_token": REDACTED, "api_key": [REDACTED], "tokenizer": "t5"},
        "argv": ["run", "~/m"],
        "finite": 1.5,
    }
    assert expected == redact_mapping(given)
    assert ("run", f"{HOME}/m") == given["argv"]
