"""Commands for whoever runs a control plane."""
