"""What the pages on deployment and scaling state can be recomputed or looked up."""

from __future__ import annotations

import math
import re

import pytest

from tests.deploy.manifests import FOLDER, find, render
from tests.repository import ROOT

SCALING = (ROOT / "docs" / "scaling.md").read_text()
DEPLOYMENT = (ROOT / "docs" / "deployment.md").read_text()


def given() -> dict[str, float]:
    rows = re.findall(r"^\| [^|]+ \| (\w) \| ([\d.]+) \|$", SCALING, flags=re.MULTILINE)
    return {symbol: float(value) for symbol, value in rows}


def results() -> dict[str, tuple[str, float]]:
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| ([\d.]+) \|$", SCALING, flags=re.MULTILINE)
    return {what: (formula, float(value)) for what, formula, value in rows if len(formula) > 1}


def test_sizing_follows_from_what_is_given() -> None:
    values = given()
    assert set(values) == set("rpgcftbmu")
    told = results()
    values["n"] = told["requests running at once, by Little's law"][1]
    hosts = []
    for what, (formula, value) in told.items():
        if any(sign in formula for sign in "*/"):
            computed = eval(formula.removeprefix("n = "), {"__builtins__": {}}, values)
            assert value == pytest.approx(computed, abs=0.005), what
            if what.startswith("hosts by"):
                hosts.append(computed)
    assert len(hosts) == 3
    assert told["hosts"][1] == math.ceil(max(hosts))
    (spare,) = [value for what, (_, value) in told.items() if what.startswith("with one")]
    assert spare == told["hosts"][1] + 1
    # 2 * layers * KV heads * head size * bytes of a value
    assert "32 layers, 8 KV heads of 128, bfloat16" in SCALING
    assert values["b"] == 2 * 32 * 8 * 128 * 2


def test_metrics_that_are_named_exist() -> None:
    catalogue = (ROOT / "executor/specsched_executor/telemetry/catalogue.py").read_text()
    named = set(re.findall(r"`(vllm:\w+)`", SCALING))
    assert len(named) >= 3
    assert [name for name in sorted(named) if f'"{name}"' not in catalogue] == []


def test_secrets_and_claims_that_are_named_are_mounted() -> None:
    objects = render(FOLDER / "overlays" / "mtls")
    mounted = set()
    for kind, name in (("StatefulSet", "specsched"), ("Deployment", "specsched-gateway")):
        for volume in find(objects, kind, name)["spec"]["template"]["spec"]["volumes"]:
            mounted |= {volume.get("secret", {}).get("secretName")}
            mounted |= {volume.get("persistentVolumeClaim", {}).get("claimName")}
    assert mounted - {None} == {
        "specsched-executor-tls",
        "specsched-gateway-tls",
        "specsched-models",
    }
    for name in mounted - {None}:
        assert f"`{name}`" in DEPLOYMENT


def test_folders_that_are_named_are_there() -> None:
    named = re.findall(r"^\| `((?:base|overlays|components)[\w/-]*)/` \|", DEPLOYMENT, re.MULTILINE)
    there = {"base"} | {
        f"{kind}/{path.name}" for kind in ("overlays",) for path in (FOLDER / kind).iterdir()
    }
    assert there <= set(named)
    assert all((FOLDER / name / "kustomization.yaml").is_file() for name in named)


def test_replicas_of_mutual_tls_are_as_many_as_nginx_knows() -> None:
    objects = render(FOLDER / "overlays" / "mtls")
    replicas = find(objects, "StatefulSet", "specsched")["spec"]["replicas"]
    (text,) = [each["data"]["nginx.conf"] for each in objects if each["kind"] == "ConfigMap"]
    ports = dict(re.findall(r"^ +(\d+) (specsched-\d+);$", text, flags=re.MULTILINE))
    assert sorted(ports.values()) == [f"specsched-{number}" for number in range(replicas)]
    assert re.findall(r"listen 127\.0\.0\.1:(\d+) http2;", text) == list(ports)
    (*_, smg) = find(objects, "Deployment", "specsched-gateway")["spec"]["template"]["spec"][
        "containers"
    ]
    urls = [word for word in smg["args"] if word.startswith("grpc://")]
    assert urls == [f"grpc://127.0.0.1:{port}" for port in ports]
