"""The executor's gRPC front end: `vllm.grpc.engine.VllmEngine` over one engine.

gateway = build_server(engine, model, tokenizer, GatewayConfig(port=50051))
await gateway.start()
...
await gateway.stop(grace_s=5.0)
"""

from specsched_executor.gateway.api import EngineApi, EngineStats, ServedModel, Tokenizer
from specsched_executor.gateway.config import GatewayConfig
from specsched_executor.gateway.errors import (
    DuplicateRequestError,
    GatewayError,
    GenerationFailedError,
    NotServingError,
    OverloadedError,
    UnsupportedCallError,
)
from specsched_executor.gateway.ports import ReservedPorts, check_port
from specsched_executor.gateway.server import Gateway, build_server

__all__ = [
    "DuplicateRequestError",
    "EngineApi",
    "EngineStats",
    "Gateway",
    "GatewayConfig",
    "GatewayError",
    "GenerationFailedError",
    "NotServingError",
    "OverloadedError",
    "ReservedPorts",
    "ServedModel",
    "Tokenizer",
    "UnsupportedCallError",
    "build_server",
    "check_port",
]
