"""Version of the portable code, which travels with published checkpoints.

A change in this folder changes published models: raise the number, add a line to CHANGELOG.md and run
`seqpe-zoo sync-code` on what is published.
"""

PORTABLE_VERSION = "1"
