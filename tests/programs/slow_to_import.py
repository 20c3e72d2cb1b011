"""A module that takes `IMPORT_TAKES` seconds to import; none where that is not set, as in the test's own process."""

import os
import time

from tests.faults.tools import noting

with noting("import"):
    time.sleep(float(os.environ.get("IMPORT_TAKES", "0")))


def imported() -> int:
    return 1
