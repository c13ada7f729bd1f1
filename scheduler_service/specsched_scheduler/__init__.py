"""The scheduler: decides, every step, how many draft tokens are verified. Never imports torch."""

from specsched_protocol.grpc_core import quiet_grpc_core

from specsched_scheduler._blas import start_one_thread

quiet_grpc_core()
start_one_thread()
