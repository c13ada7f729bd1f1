"""Options of the gateway API's second address."""

from __future__ import annotations

from pathlib import Path

import pytest
from specsched_executor.config import ExecutorConfig
from specsched_protocol.settings import ConfigError, load_settings

from tests.certificates import Authority


def _load(**flags: object) -> ExecutorConfig:
    return load_settings(ExecutorConfig, flags, {})


@pytest.fixture
def files(tmp_path: Path) -> dict[str, object]:
    issued = Authority(tmp_path).issue("server")
    return {"tls_cert": issued.certificate, "tls_key": issued.key, "tls_client_ca": issued.ca}


def test_nothing_but_loopback_is_served_unless_told() -> None:
    config = _load()
    assert (config.listen_address, config.tls) == (None, None)


def test_loopback_needs_no_certificates() -> None:
    assert _load(listen="[::1]:0").listen_address.port == 0


def test_other_machines_need_certificates_or_a_word(files: dict[str, object]) -> None:
    told = r"listen = '0\.0\.0\.0:50052' .*tls_cert, tls_key and tls_client_ca; or allow_plaintext"
    with pytest.raises(ConfigError, match=told):
        _load(listen="0.0.0.0:50052")
    assert _load(listen="0.0.0.0:50052", **files).tls.certificate == files["tls_cert"]
    assert _load(listen="0.0.0.0:50052", allow_plaintext=True).tls is None


def test_certificates_go_together(files: dict[str, object]) -> None:
    del files["tls_key"]
    with pytest.raises(ConfigError, match="tls_key missing"):
        _load(listen="0.0.0.0:50052", **files)


@pytest.mark.parametrize(
    "flags",
    [
        {"allow_plaintext": True},
        {"allow_plaintext": True, "listen": "127.0.0.1:0"},
    ],
)
def test_plaintext_that_needs_no_word_refuses_it(flags: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="no effect"):
        _load(**flags)


def test_what_has_no_effect_with_or_without_an_address_is_refused(
    files: dict[str, object],
) -> None:
    with pytest.raises(ConfigError, match="no effect without listen"):
        _load(**files)
    with pytest.raises(ConfigError, match="no effect with certificates"):
        _load(listen="0.0.0.0:50052", allow_plaintext=True, **files)


def test_an_address_must_be_one() -> None:
    with pytest.raises(ConfigError, match="'everywhere' is no address"):
        _load(listen="everywhere")
