# shellcheck shell=bash
# Every node sources this file before it starts its ranks: edit a copy, and name the copy in NODE_ENVIRONMENT.
# The batch script's environment (PATH, an activated .venv) is passed on anyway.
#
# module load cuda/12.8
# . /shared/kinspan/.venv/bin/activate
# export NCCL_SOCKET_IFNAME=ib0 GLOO_SOCKET_IFNAME=ib0   # the network between the nodes, if there are several
# export HF_HUB_OFFLINE=1                                # if the nodes cannot reach the model hub
