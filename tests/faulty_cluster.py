"""Run by ``commands/test_doctor.py`` in an environment with faults, which its nodes inherit: a
cluster of one node that gives away four GPUs. Prints the address; ends with its input.
"""

import sys

from ray.cluster_utils import Cluster

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "num_gpus": 4})
print(cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
