"""The scheduler: decides, every step, how many draft tokens are verified. Never imports torch."""

from specsched_protocol.grpc_core import quiet_grpc_core

quiet_grpc_core()
