"""The model libraries are quiet, also where something else imported them first."""

from __future__ import annotations

import diffusers
import pytest
import transformers

from fuseproof.pipelines.libraries import silence_libraries

LIBRARIES = ((transformers, "TRANSFORMERS_VERBOSITY"), (diffusers, "DIFFUSERS_VERBOSITY"))


@pytest.mark.parametrize(("expected", "wish"), [("error", None), ("error", "error"), ("info", "info")])
def test_a_wish_is_kept_and_silence_is_the_rest(
    expected: str, wish: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for library, name in LIBRARIES:
        monkeypatch.setenv(name, wish or "")
        if wish is None:
            monkeypatch.delenv(name)
        library.utils.logging.set_verbosity_info()
    silence_libraries()
    try:
        for library, _ in LIBRARIES:
            level = {"error": library.utils.logging.ERROR, "info": library.utils.logging.INFO}[expected]
            assert level == library.utils.logging.get_verbosity()
    finally:
        for library, _ in LIBRARIES:
            library.utils.logging.set_verbosity_error()
