"""The sidecar of a Pod: whether one is injected, and the patch that adds it. Pure, but for reading its settings' file.

``decision`` says whether; ``template`` renders what is added; ``merge`` lays it over the Pod; ``probes`` and
``scraping`` lead what others ask of the application through the agent; ``inject`` is all of it. Behaviour, annotations
and labels are Istio's ("Installing the Sidecar", "Resource Annotations"); the container is our agent with Envoy.
"""
