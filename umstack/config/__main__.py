"""`python -m umstack.config` prints docs/options.md."""

import sys

from umstack.config.documentation import render_options_markdown

sys.stdout.write(render_options_markdown())
