"""``make gpu``: what can only be seen on a GPU, checked and measured in one unattended command.

kit.py and pack.py make the offline kit that such a machine needs and unpack it there. runner.py gives every check of
checks.py a process and a time limit; worker.py is that process. The checks come in rooms: correctness.py, families.py
and repeats.py (is it right?), speed.py (how fast, beside the Trainer of peer.py), costs.py and scoring.py (what else
takes time and memory). ours.py runs the product for all of them. report.py prints the table.
"""
