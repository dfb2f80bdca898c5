# What the control plane reads: services and their health, and Istio's objects.
node_prefix "" { policy = "read" }
service_prefix "" { policy = "read" }
key_prefix "mesh-pilot/config" { policy = "read" }
