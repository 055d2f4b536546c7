"""The examples under deploy/ are whole: they say what their kinds ask for, and ranks, ports and meshes agree.

Arguments: deploy/kubernetes/pytorchjob.yaml, jobset.yaml, deploy/slurm/train.sbatch. Unknown fields are found by a check
against the kinds' own definitions (kubectl apply --dry-run=server, or the CRDs' schemas), which needs a cluster or a
download.
"""

import math
import re
import subprocess
import sys
import unittest

import yaml


def ranks_of(arguments):
    """The product of the axes of --mesh."""
    (mesh,) = [a[len("--mesh="):] for a in arguments if a.startswith("--mesh=")]
    return math.prod(int(axis.split("=")[1]) for axis in mesh.split(","))


def container_of(test, pod):
    (container,) = pod["containers"]
    test.assertRegex(container["image"], r"^[\w./-]+:[\w.-]+$")
    test.assertIn("memory", container["resources"]["limits"])
    token = {e["name"]: e["valueFrom"]["secretKeyRef"] for e in container["env"]}["WEFT_STORE_TOKEN"]
    test.assertEqual(token, {"name": "weft-store", "key": "token"})
    return container


class Manifests(unittest.TestCase):
    pytorchjob, jobset, sbatch = sys.argv[1:4]

    def test_pytorchjob(self):
        with open(self.pytorchjob) as file:
            job = yaml.safe_load(file)
        self.assertEqual((job["apiVersion"], job["kind"]), ("kubeflow.org/v1", "PyTorchJob"))
        replicas = job["spec"]["pytorchReplicaSpecs"]
        self.assertEqual(set(replicas), {"Master", "Worker"})
        self.assertEqual(replicas["Master"]["replicas"], 1)
        num_ranks = sum(spec["replicas"] for spec in replicas.values())
        containers = [container_of(self, spec["template"]["spec"]) for spec in replicas.values()]
        self.assertEqual(containers[0], containers[1], "Master and Worker run the same")
        # The operator finds its container and its port by these names.
        self.assertEqual(containers[0]["name"], "pytorch")
        self.assertEqual([p["name"] for p in containers[0]["ports"]], ["pytorchjob-port"])
        self.assertEqual(ranks_of(containers[0]["args"]), num_ranks)

    def test_jobset(self):
        with open(self.jobset) as file:
            jobset = yaml.safe_load(file)
        self.assertEqual((jobset["apiVersion"], jobset["kind"]), ("jobset.x-k8s.io/v1alpha2", "JobSet"))
        (nodes,) = jobset["spec"]["replicatedJobs"]
        job = nodes["template"]["spec"]
        self.assertEqual(job["parallelism"], job["completions"])
        self.assertEqual(job["completionMode"], "Indexed")
        pod = job["template"]["spec"]
        self.assertEqual(pod["restartPolicy"], "Never")
        container = container_of(self, pod)
        arguments = container["args"]
        flags = dict(a[2:].split("=", 1) for a in arguments if a.startswith("--") and "=" in a)
        self.assertEqual(int(flags["nnodes"]), job["completions"])
        self.assertEqual(ranks_of(arguments), job["completions"] * int(flags["nproc-per-node"]))
        self.assertEqual(flags["node-rank"], "$(JOB_COMPLETION_INDEX)")
        # <set>-<job>-<replica>-<pod>.<set>: the first pod's name in the set's own service.
        name = jobset["metadata"]["name"]
        self.assertEqual(flags["master-addr"], f"{name}-{nodes['name']}-0-0.{name}")
        self.assertEqual(int(flags["master-port"]), container["ports"][0]["containerPort"])
        mounts = {m["mountPath"]: m["name"] for m in container["volumeMounts"]}
        volumes = {v["name"]: v for v in pod["volumes"]}
        self.assertEqual(volumes[mounts["/dev/shm"]]["emptyDir"]["medium"], "Memory")

    def test_sbatch(self):
        subprocess.run(["bash", "-n", self.sbatch], check=True)
        with open(self.sbatch) as file:
            text = file.read()
        options = dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)$", text, re.MULTILINE))
        self.assertEqual(ranks_of(re.findall(r"--mesh=\S+", text)),
                         int(options["nodes"]) * int(options["ntasks-per-node"]))
        self.assertRegex(text, r"(?m)^srun .*train_gpt")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
