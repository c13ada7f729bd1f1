"""The present executor attaches to a scheduler of the previous protocol, over both transports."""

from __future__ import annotations

import queue
from concurrent import futures

import grpc
import pytest
from specsched_executor.attach import AttachManager
from specsched_executor.transport.shared_memory import SharedMemoryTransport
from specsched_protocol.plan import StepDecision
from specsched_protocol.shm import RegionShape
from specsched_protocol.v1 import plan_pb2
from specsched_protocol.v1 import scheduler_pb2 as pb

from tests import previous_protocol as previous
from tests.executor.attach.support import FACTS, FAST, eventually
from tests.protos.builders import make_request, make_rows

END = object()


class Served:
    """`SchedulerService/Attach` of the previous protocol; the test says what is sent."""

    def __init__(self, path, *, transport: int) -> None:
        self.hello = None
        self.received = []
        self.outbox: queue.Queue = queue.Queue()
        self._transport = transport
        handler = grpc.stream_stream_rpc_method_handler(
            self._attach,
            request_deserializer=previous.message("AttachRequest").FromString,
            response_serializer=previous.message("AttachResponse").SerializeToString,
        )
        self._server = grpc.server(futures.ThreadPoolExecutor(4))
        self._server.add_generic_rpc_handlers(
            [
                grpc.method_handlers_generic_handler(
                    "specsched.v1.SchedulerService", {"Attach": handler}
                )
            ]
        )
        self._server.add_insecure_port(f"unix:{path}")
        self._server.start()

    def send(self, **message: object) -> None:
        self.outbox.put(previous.message("AttachResponse")(**message))

    def stop(self) -> None:
        self.outbox.put(END)
        self._server.stop(0).wait()

    def _attach(self, requests, context):
        self.hello = next(requests).hello
        ours = previous.VERSION
        theirs = self.hello.protocol
        assert theirs.min_version <= ours <= theirs.max_version
        yield previous.message("AttachResponse")(
            welcome=previous.message("Welcome")(
                protocol_version=ours,
                scheduler_version="previous",
                lane=self.hello.lane,
                transport=self._transport,
            )
        )
        reader = futures.ThreadPoolExecutor(1)
        reader.submit(self._read, requests)
        while (response := self.outbox.get()) is not END:
            yield response
        reader.shutdown(wait=False)

    def _read(self, requests) -> None:
        for request in requests:
            self.received.append(request)


@pytest.fixture
def transport(run_dir):
    # As many requests and drafts as FACTS tells of.
    transport = SharedMemoryTransport(run_dir, RegionShape(4, 7, num_report_slots=4), FACTS.boot_id)
    yield transport
    transport.close()


@pytest.fixture
def manager(run_dir, transport):
    manager = AttachManager(run_dir, transport, FACTS, FAST)
    manager.start()
    yield manager
    manager.stop()


def test_previous_scheduler_is_followed_through_shared_memory(run_dir, transport, manager):
    served = Served(run_dir.scheduler_socket("old"), transport=pb.TRANSPORT_SHARED_MEMORY)
    eventually(lambda: served.hello is not None)
    memory = previous.PreviousScheduler(served.hello.shared_memory)
    served.send(ready=previous.message("Ready")())
    eventually(manager.attachments)
    layout = transport._region.layout._asdict()
    for step in (7, 8, 9):
        transport.publish(make_rows(step - 2, max_draft_tokens=7), make_request(step))
        asked = memory.request(layout)
        assert (asked["STEP_ID"], asked["NUM_REQUESTS"]) == (step, 3)
        memory.decide(
            STEP_ID=asked["STEP_ID"],
            SOURCE_STEP_ID=asked["SOURCE_STEP_ID"],
            EPOCH=served.hello.epoch,
            BUDGET=step,
            MAX_VERIFY_LEN=2,
            MODEL_STATE=1,
        )
        decision = transport.read(step)
        assert isinstance(decision, StepDecision), decision
        assert (decision.budget, decision.max_verify_len) == (step, 2)
    memory.close()
    served.stop()


def test_previous_scheduler_is_followed_on_the_stream(run_dir, transport, manager):
    served = Served(run_dir.scheduler_socket("old"), transport=pb.TRANSPORT_INLINE)
    eventually(lambda: served.hello is not None)
    served.send(ready=previous.message("Ready")())
    eventually(manager.attachments)
    transport.publish(make_rows(5, max_draft_tokens=7), make_request(7))
    eventually(lambda: any(r.WhichOneof("message") == "steps" for r in served.received))
    (asked,) = [r.steps for r in served.received if r.WhichOneof("message") == "steps"]
    assert asked.plan_request.step_id == 7
    served.send(
        decision=previous.message("InlineDecision")(
            step_id=7, source_step_id=5, epoch=served.hello.epoch, budget=6, model_state=1
        )
    )
    # A change of policy goes the same way after it: then the decision has been delivered.
    spec = previous.message("PolicySpec")(name="fixed")
    served.send(policy_changed=previous.message("PolicyChanged")(policy=spec))
    eventually(lambda: manager.attachments()[0].policy == plan_pb2.PolicySpec(name="fixed"))
    decision = transport.read(7)
    assert isinstance(decision, StepDecision), decision
    assert decision.budget == 6
    served.stop()


def test_nothing_is_sent_that_the_previous_scheduler_does_not_know(run_dir, transport, manager):
    served = Served(run_dir.scheduler_socket("old"), transport=pb.TRANSPORT_INLINE)
    eventually(lambda: served.hello is not None)
    served.send(ready=previous.message("Ready")())
    eventually(lambda: sum(r.WhichOneof("message") == "heartbeat" for r in served.received) > 3)
    assert None not in {r.WhichOneof("message") for r in served.received}
    served.stop()
