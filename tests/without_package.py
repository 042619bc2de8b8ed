"""Start of scripts that run where neither this package nor a network can be reached."""

PREAMBLE = """
import socket, sys
from pathlib import Path

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "seqpe_zoo":
            raise ImportError("seqpe_zoo is hidden")

def refuse(*args, **kwargs):
    raise OSError("no network in this test")

sys.meta_path.insert(0, Hidden())
socket.socket.connect = refuse
"""
