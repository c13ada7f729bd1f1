"""Generate the committed protobuf stubs under protos/specsched_protocol/v1.

`--check` writes nothing and exits 1 where the committed stubs differ from the generated ones.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

PROTO_ROOT = Path(__file__).resolve().parent.parent / "protos"
# The plugins of this interpreter, whether or not its environment is activated.
PLUGINS = ("protoc-gen-mypy", "protoc-gen-mypy_grpc")
STUB_SUFFIXES = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py", "_pb2_grpc.pyi")


def generate(out: Path) -> list[Path]:
    """Write the stubs of every .proto below PROTO_ROOT to `out`; return their relative paths."""
    protos = sorted(PROTO_ROOT.rglob("*.proto"))
    args = [
        "protoc",
        f"-I{PROTO_ROOT}",
        *(f"--plugin={name}={Path(sys.executable).with_name(name)}" for name in PLUGINS),
        f"--python_out={out}",
        f"--grpc_python_out={out}",
        f"--mypy_out=quiet:{out}",
        f"--mypy_grpc_out=quiet:{out}",
        *map(str, protos),
    ]
    if protoc.main(args) != 0:
        raise SystemExit("protoc failed")
    return sorted(p.relative_to(out) for p in out.rglob("*") if p.name.endswith(STUB_SUFFIXES))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    with tempfile.TemporaryDirectory() as tmp:
        out = Path(tmp)
        drifted = []
        for rel in generate(out):
            fresh, committed = (out / rel).read_bytes(), PROTO_ROOT / rel
            if committed.exists() and committed.read_bytes() == fresh:
                continue
            drifted.append(str(rel))
            if not check:
                committed.write_bytes(fresh)
    if check and drifted:
        print("stubs differ from the .proto files (run `make protos`):", *drifted, sep="\n  ")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
