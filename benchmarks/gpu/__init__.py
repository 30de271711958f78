"""``make gpu``: what can only be seen on a GPU, checked and measured in one unattended command.

plan.py is the table of checks with their estimated times. kit.py and pack.py bring what the machine lacks. runner.py
gives every check a process (worker.py), and report.py prints the table. The checks: correctness.py and updates.py (is
it right?), speed.py (how fast, beside the usual way) and waits.py (does the host wait?); bench.py runs the product for
them.
"""
