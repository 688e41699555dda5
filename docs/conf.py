"""Sphinx configuration of the documentation site. `make docs` builds it; a broken link ends the build."""

project = "Skylane"
author = "the Skylane contributors"
copyright = "the Skylane contributors"  # noqa: A001 - the name is Sphinx's.

extensions = ["myst_parser"]
root_doc = "docs/index"
# The source folder is the repository, so that pages can link to files outside of docs/ in the way that GitHub shows them.
include_patterns = [
    "docs/*.md",
    "docs/**/*.md",
    "*.md",
    "clients/README.md",
    "mosquitto/README.md",
    "examples/*/README.md",
]
exclude_patterns = ["README.md"]
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]

html_theme = "furo"
html_title = "Skylane"
html_extra_path = ["redirect"]
