"""The model executor: loads a target, drafts, verifies what the scheduler planned, and serves."""

from specsched_protocol.grpc_core import quiet_grpc_core

from specsched_executor._openmp import wait_shortly

wait_shortly()
quiet_grpc_core()
