"""Publishing models on the Hub: stage -> check -> plan -> push -> verify, and sync-code.

Importing this package imports nothing else: plan and push need huggingface_hub only, never torch.
"""
