"""`python -m krm_runner` is `krm-runner`."""

import sys

from krm_runner.cli import main

sys.exit(main())
