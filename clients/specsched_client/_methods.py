"""The calls that the client makes: path and message types, nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from google.protobuf.message import Message
from grpc_health.v1 import health_pb2
from smg_grpc_proto import vllm_engine_pb2 as engine_pb
from smg_grpc_proto.generated import common_pb2
from specsched_protocol.v1 import executor_pb2, plan_pb2, scheduler_pb2

Q = TypeVar("Q", bound=Message)
R = TypeVar("R", bound=Message)


@dataclass(frozen=True, slots=True)
class Method(Generic[Q, R]):
    """One RPC. `path`: /package.Service/Name."""

    path: str
    request: type[Q]
    response: type[R]


_ENGINE = "/vllm.grpc.engine.VllmEngine"
_EXECUTOR = "/specsched.v1.ExecutorService"
_SCHEDULER = "/specsched.v1.SchedulerService"

GENERATE = Method(f"{_ENGINE}/Generate", engine_pb.GenerateRequest, engine_pb.GenerateResponse)
ABORT = Method(f"{_ENGINE}/Abort", engine_pb.AbortRequest, engine_pb.AbortResponse)
HEALTH_CHECK = Method(
    f"{_ENGINE}/HealthCheck", engine_pb.HealthCheckRequest, engine_pb.HealthCheckResponse
)
GET_MODEL_INFO = Method(
    f"{_ENGINE}/GetModelInfo", engine_pb.GetModelInfoRequest, engine_pb.GetModelInfoResponse
)
GET_SERVER_INFO = Method(
    f"{_ENGINE}/GetServerInfo", engine_pb.GetServerInfoRequest, engine_pb.GetServerInfoResponse
)
GET_LOADS = Method(f"{_ENGINE}/GetLoads", engine_pb.GetLoadsRequest, engine_pb.GetLoadsResponse)
GET_TOKENIZER = Method(
    f"{_ENGINE}/GetTokenizer", common_pb2.GetTokenizerRequest, common_pb2.GetTokenizerChunk
)
GET_STEP_COUNTERS = Method(
    f"{_EXECUTOR}/GetStepCounters",
    executor_pb2.GetStepCountersRequest,
    executor_pb2.GetStepCountersResponse,
)
LIST_SCHEDULERS = Method(
    f"{_EXECUTOR}/ListSchedulers",
    executor_pb2.ListSchedulersRequest,
    executor_pb2.ListSchedulersResponse,
)
CHECK_HEALTH = Method(
    "/grpc.health.v1.Health/Check",
    health_pb2.HealthCheckRequest,
    health_pb2.HealthCheckResponse,
)
GET_STATUS = Method(
    f"{_SCHEDULER}/GetStatus", scheduler_pb2.GetStatusRequest, scheduler_pb2.GetStatusResponse
)
SET_POLICY = Method(
    f"{_SCHEDULER}/SetPolicy", scheduler_pb2.SetPolicyRequest, scheduler_pb2.SetPolicyResponse
)
PROMOTE = Method(
    f"{_SCHEDULER}/Promote", scheduler_pb2.PromoteRequest, scheduler_pb2.PromoteResponse
)
DRAIN = Method(f"{_SCHEDULER}/Drain", scheduler_pb2.DrainRequest, scheduler_pb2.DrainResponse)
GET_LEARNING = Method(
    f"{_SCHEDULER}/GetLearning", scheduler_pb2.GetLearningRequest, scheduler_pb2.GetLearningResponse
)
SET_LEARNING = Method(
    f"{_SCHEDULER}/SetLearning", scheduler_pb2.SetLearningRequest, scheduler_pb2.SetLearningResponse
)
EXPORT_STATE = Method(
    f"{_SCHEDULER}/ExportState", scheduler_pb2.ExportStateRequest, scheduler_pb2.ExportStateResponse
)
IMPORT_STATE = Method(
    f"{_SCHEDULER}/ImportState", scheduler_pb2.ImportStateRequest, scheduler_pb2.ImportStateResponse
)
PLAN = Method(f"{_SCHEDULER}/Plan", plan_pb2.PlanRequest, plan_pb2.PlanResponse)
WATCH_DECISIONS = Method(
    f"{_SCHEDULER}/WatchDecisions",
    scheduler_pb2.WatchDecisionsRequest,
    scheduler_pb2.WatchDecisionsResponse,
)
