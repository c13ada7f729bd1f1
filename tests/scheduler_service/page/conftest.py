from tests.scheduler_service.service.conftest import run_dir, start

__all__ = ["run_dir", "start"]
