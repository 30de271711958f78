"""``make gpu``: what can only be seen on a GPU, checked and measured in one unattended command.

kit.py and pack.py bring what the machine lacks. runner.py gives every check a process (worker.py) and a time limit, and
report.py prints the table. The checks: correctness.py (is it right?), speed.py (how fast, beside the usual way) and
costs.py (what else takes time and memory); bench.py runs the product for them. count.py needs no GPU: it counts what a
step asks of one (``make gpu-count``).
"""
