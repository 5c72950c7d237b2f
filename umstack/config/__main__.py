"""`python -m umstack.config` prints docs/options.md, with `--keywords` umstack/config/keywords.py."""

import sys

from umstack.config.documentation import render_options_markdown
from umstack.config.keyword_types import render_keywords

sys.stdout.write(render_keywords() if "--keywords" in sys.argv[1:] else render_options_markdown())
