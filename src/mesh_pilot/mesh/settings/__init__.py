"""Settings of the mesh as a whole: of MeshConfig, MeshNetworks, and where zones count."""
