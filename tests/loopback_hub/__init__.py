"""A Hugging Face Hub of our own on 127.0.0.1, for tests and to rehearse a push before the real one.

    python -m tests.loopback_hub --root hub_root --port 8899
    export HF_ENDPOINT=http://127.0.0.1:8899 HF_HUB_DISABLE_XET=1 HF_TOKEN=hf_loopback_write

After these lines every tool that speaks to the Hub (huggingface_hub, transformers, timm, `hf`) speaks to this
server. It is a protocol rehearsal, not the Hub: licence lists, secret scans and quotas of the real one may
differ. The tests inject faults into it (`faults.py`) to prove that a push never leaves a half-published
model. Standard library and PyYAML only; it is in a clone of the repository, not in the installed package.
"""
