# shellcheck shell=bash
# What every node sources before it starts its ranks: copy it, edit the copy, and name that in NODE_ENVIRONMENT.
# The batch script's own environment (PATH, an activated .venv) comes along by itself.
#
# module load cuda/12.8
# . /shared/kinspan/.venv/bin/activate
# export NCCL_SOCKET_IFNAME=ib0 GLOO_SOCKET_IFNAME=ib0   # the network between the nodes, where there are several
# export HF_HUB_OFFLINE=1                                # where the nodes see no model hub
