"""Policies that fail: their steps have no plan, and count as late."""

from __future__ import annotations

from collections.abc import Iterator

from specsched_protocol.policy_text import policy_text
from specsched_protocol.v1 import executor_pb2, plan_pb2, scheduler_pb2

from specsched_client.cli._lane_views import failures_text
from specsched_client.cli._status_report import Report
from specsched_client.cli.doctor.findings import Code, Finding, Severity

__all__ = ["check_policies"]


def check_policies(report: Report) -> Iterator[Finding]:
    """One finding for each scheduler whose present policy has failed."""
    failing = dict(_told_by_executor(report)) | dict(_told_by_schedulers(report))
    for name, failures in sorted(failing.items()):
        what = (
            f"scheduler {name}: policy {policy_text(failures.policy)} fails, and its steps count as"
            f" late; {failures_text(failures)}"
        )
        remedy = (
            f"specsched policy set throughput --scheduler {name}, or mend the policy and restart"
            " that scheduler; its log has `policy failed` with the traceback"
        )
        yield Finding(Code.POLICY_FAILS, Severity.ERROR, what, remedy)


def _told_by_schedulers(report: Report) -> Iterator[tuple[str, scheduler_pb2.PolicyFailures]]:
    for name, told in report.schedulers.items():
        if isinstance(told, str):
            continue
        for attachment in told.status.attachments:
            if _fails(attachment, told.status.policy):
                yield name, attachment.policy_failures


def _told_by_executor(report: Report) -> Iterator[tuple[str, scheduler_pb2.PolicyFailures]]:
    """Schedulers on other machines are in no run directory here."""
    if isinstance(report.executor, str) or report.executor.schedulers is None:
        return
    for each in report.executor.schedulers.schedulers:
        if _fails(each, each.policy):
            yield each.name, each.policy_failures


def _fails(
    told: scheduler_pb2.AttachmentStatus | executor_pb2.AttachedScheduler,
    policy: plan_pb2.PolicySpec,
) -> bool:
    return told.HasField("policy_failures") and told.policy_failures.policy == policy
