"""What a scheduler writes of the executors that are attached to it."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq

from tests.scheduler_service.service.support import SharedMemoryExecutor


async def test_executors_that_attach_alike_have_files_of_their_own(start, run_dir, tmp_path: Path):
    folder = tmp_path / "trace"
    scheduler = await start(trace_dir=folder)
    await scheduler.until_serving()
    with SharedMemoryExecutor(run_dir) as first, SharedMemoryExecutor(run_dir) as second:
        async with first.attached(scheduler), second.attached(scheduler):
            for executor in (first, second):
                await executor.decide()
        await scheduler.stop()
        files = sorted(folder.iterdir())
        boot_ids = {pq.read_schema(file).metadata[b"specsched.boot_id"] for file in files}
        assert boot_ids == {each.transport.boot_id.hex().encode() for each in (first, second)}
    names = {file.name.partition("-")[2] for file in files}
    assert len(names) == len(files) == 2, "whenever they were begun"
