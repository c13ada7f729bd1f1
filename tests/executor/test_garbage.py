import gc

from specsched_executor.garbage import keep_what_is_there


def test_later_collections_leave_out_what_was_there() -> None:
    before = gc.get_freeze_count()
    try:
        keep_what_is_there()
        assert gc.get_freeze_count() > before + 1000
        assert len(gc.get_objects()) < 1000
    finally:
        gc.unfreeze()
