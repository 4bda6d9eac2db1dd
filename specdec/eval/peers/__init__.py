"""Other engines beside this one: each in a process of its own, on the same prompts, in turns.

`worker.py` and the `run_*.py` modules run in the Python of the peer's own virtual environment, where nothing of specdec
can be imported; between themselves they import relatively.
"""
