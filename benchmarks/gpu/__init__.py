"""``make gpu`` checks and measures what can only be seen on a GPU, in one unattended command.

__main__.py runs the checks, each in a process (worker.py). checks.py: is it right? speed.py: how fast is it, and does
the host wait? bench.py runs the product for them. pack.py makes the kit for a machine without a package index.
"""

WHEELS, CORPORA, MODELS = "wheels", "corpora", "models"  # folders of the kit
