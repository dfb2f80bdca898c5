"""The table of message types: Istio's codes, levels and texts for Istio's messages, and our own.

Istio's are from "Configuration Analysis Messages" of its documentation. Its messages about an installation of Istio on
Kubernetes (webhooks, images, versions of CRDs) have no meaning here.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from mesh_pilot.analysis.findings import Level, MessageType

ALL: list[MessageType] = []


def _declared(level: Level, code: str, name: str, template: str, description: str, mend: str) -> MessageType:
    declared = MessageType(code, name, level, template, description, mend)
    ALL.append(declared)
    return declared


E, W, I = Level.ERROR, Level.WARNING, Level.INFO  # noqa: E741  # one letter keeps the table readable

INTERNAL_ERROR = _declared(
    E, "IST0001", "InternalError", "Internal error: {}",
    "An analyzer failed, which is a fault of mesh-pilot. All others have run.",
    "Please report it with the log, which has the details.",
)  # fmt: skip
DEPRECATED = _declared(
    W, "IST0002", "Deprecated", "Deprecated: {}",
    "The object uses a field or a feature that a later version may drop.",
    "Use the replacement that the message names.",
)  # fmt: skip
NOT_FOUND = _declared(
    E, "IST0101", "ReferencedResourceNotFound", 'Referenced {} not found: "{}"',
    "The object names something that does not exist: a host, a port, a subset, a Gateway, a namespace, a "
    "credential, or "
    "workloads by their labels.",
    "Correct the name, or add what it names.",
)  # fmt: skip
NAMESPACE_NOT_INJECTED = _declared(
    I, "IST0102", "NamespaceNotInjected",
    "The namespace is not enabled for Istio injection. Run 'kubectl label namespace {} istio-injection=enabled' to "
    "enable it, or 'kubectl label namespace {} istio-injection=disabled' to explicitly mark it as not needing "
    "injection.",
    "A namespace of Kubernetes, with Pods beside it, has no label that says whether its Pods get a proxy.",
    "Label the namespace, if its Pods are to have Istio's proxy.",
)  # fmt: skip
POD_WITHOUT_PROXY = _declared(
    W, "IST0103", "PodMissingProxy",
    "The pod {} is missing the Istio proxy. This can often be resolved by restarting or redeploying the workload.",
    "A Pod in a namespace with injection has no proxy.",
    "Restart the workload.",
)  # fmt: skip
SCHEMA_ERROR = _declared(
    E, "IST0106", "SchemaValidationError", "{}",
    "The object is refused: a field is unknown, has the wrong type, or a value that Istio does not allow.",
    "Correct the field that the message names; an object that was in force stays so until then.",
)  # fmt: skip
CONFLICTING_HOSTS = _declared(
    E, "IST0109", "ConflictingMeshGatewayVirtualServiceHosts",
    "The VirtualServices {} associated with mesh gateway define the same host {} which can lead to undefined "
    "behavior. "
    "This can be fixed by merging the conflicting VirtualServices into a single resource.",
    "Two VirtualServices for sidecars have the same host, and some namespace sees both. Only one is used: its "
    "owner's, and of one namespace the oldest.",
    "Merge them into one, or give them different exportTo.",
)  # fmt: skip
CONFLICTING_SIDECARS = _declared(
    E, "IST0110", "ConflictingSidecarWorkloadSelectors",
    'The Sidecars {} in namespace "{}" select the same workload pod "{}", which can lead to undefined behavior.',
    "Two Sidecars select the same workload. Only the oldest is used.",
    "Narrow one of the selectors, or merge the Sidecars.",
)  # fmt: skip
SIDECARS_WITHOUT_SELECTOR = _declared(
    E, "IST0111", "MultipleSidecarsWithoutWorkloadSelectors",
    'The Sidecars {} in namespace "{}" have no workload selector, which can lead to undefined behavior.',
    "Two Sidecars of a namespace have no selector. Only the oldest is used.",
    "Keep one, or give the other a workloadSelector.",
)  # fmt: skip
PORT_REQUIRED = _declared(
    E, "IST0112", "VirtualServiceDestinationPortSelectorRequired",
    'This VirtualService routes to a service "{}" that exposes multiple ports {}. Specifying a port in the '
    'destination is '
    "required to disambiguate.",
    "A destination has several ports, and the route does not say which.",
    "Add destination.port.number with one of the ports.",
)  # fmt: skip
SEVERAL_PROTOCOLS = _declared(
    W, "IST0116", "DeploymentAssociatedToMultipleServices",
    "This deployment {} is associated with multiple services using port {} but different protocols: {}",
    "The Pods of a Deployment are behind several Services that disagree on the protocol of a port.",
    "Give the port the same protocol in all Services.",
)  # fmt: skip
PORT_NAME = _declared(
    I, "IST0118", "PortNameIsNotUnderNamingConvention",
    "Port name {} (port: {}, targetPort: {}) doesn't follow the naming convention of Istio port.",
    "The name of a Service's port does not begin with a protocol, so that the protocol is guessed from the traffic.",
    "Name it after its protocol, such as http or grpc-web, or set appProtocol.",
)  # fmt: skip
INJECTION_LABELS = _declared(
    W, "IST0123", "NamespaceMultipleInjectionLabels",
    "The namespace has more than one type of injection labels {}, which may lead to undefined behavior. Make "
    "sure only "
    "one injection label exists.",
    "A namespace of Kubernetes has labels that contradict each other.",
    "Keep one of the labels.",
)  # fmt: skip
UNKNOWN_REGISTRY = _declared(
    E, "IST0126", "UnknownMeshNetworksServiceRegistry", "Unknown service registry {} in network {}",
    "A network takes its endpoints from a registry that does not exist.",
    "Name a registry that is there: Kubernetes, External, Consul, or the name of one of --consul's datacenters.",
)  # fmt: skip
NO_WORKLOADS = _declared(
    W, "IST0127", "NoMatchingWorkloadsFound", "No matching workloads for this resource with the following labels: {}",
    "An AuthorizationPolicy selects no workload that is known.",
    "Correct the selector or the namespace, or remove the policy.",
)  # fmt: skip
NO_CA_DESTINATION = _declared(
    W, "IST0128", "NoServerCertificateVerificationDestinationLevel",
    "DestinationRule {} in namespace {} has TLS mode set to {} but no caCertificates are set to validate server "
    "identity "
    "for host: {}",
    "Servers are verified by the CA certificates of each proxy's operating system: any public CA vouches for "
    "them. With insecureSkipVerify nothing is verified.",
    "Set caCertificates in trafficPolicy.tls, or credentialName together with a workloadSelector.",
)  # fmt: skip
NO_CA_PORT = _declared(
    W, "IST0129", "NoServerCertificateVerificationPortLevel",
    "DestinationRule {} in namespace {} has TLS mode set to {} but no caCertificates are set to validate server "
    "identity "
    "for host: {} at port {}",
    "Servers at a port are verified by the CA certificates of each proxy's operating system: any public CA "
    "vouches for them. With insecureSkipVerify nothing is verified.",
    "Set caCertificates in tls of portLevelSettings.",
)  # fmt: skip
UNREACHABLE_RULE = _declared(
    W, "IST0130", "VirtualServiceUnreachableRule", "VirtualService rule {} not used ({}).",
    "A rule is never used, because an earlier one takes all its requests.",
    "Move the rule before the one that hides it, or remove it. A rule without match comes last.",
)  # fmt: skip
INEFFECTIVE_MATCH = _declared(
    I, "IST0131", "VirtualServiceIneffectiveMatch",
    "VirtualService rule {} match {} is not used (duplicate/overlapping match in rule {}).",
    "A match is never used, because an earlier one takes its requests.",
    "Put narrower matches before wider ones, and remove duplicates.",
)  # fmt: skip
HOST_NOT_IN_GATEWAY = _declared(
    W, "IST0132", "VirtualServiceHostNotFoundInGateway",
    "one or more host {} defined in VirtualService {} not found in Gateway {}.",
    "None of a VirtualService's hosts is among those of a Gateway that it is bound to, so it has no effect there.",
    "Add the host to a server of the Gateway, or correct it in the VirtualService.",
)  # fmt: skip
SCHEMA_WARNING = _declared(
    W, "IST0133", "SchemaWarning", "{}",
    "The object is in force, but validation warns of a field.",
    "Look at the field that the message names.",
)  # fmt: skip
ADDRESSES_REQUIRED = _declared(
    W, "IST0134", "ServiceEntryAddressesRequired", "ServiceEntry addresses are required for this protocol.",
    "A ServiceEntry has a TCP port and no address: clients cannot tell it from other TCP services of that port.",
    "Add addresses, or turn on DNS capture with automatic addresses (ISTIO_META_DNS_CAPTURE and "
    "ISTIO_META_DNS_AUTO_ALLOCATE in proxyMetadata).",
)  # fmt: skip
CONFLICTING_TARGET_PORTS = _declared(
    W, "IST0137", "DeploymentConflictingPorts",
    'This deployment {} is associated with multiple services {} using targetPort "{}" but different ports: {}.',
    "Several Services lead to one port of a Deployment's Pods under different numbers.",
    "Use the same port number in all Services, or another targetPort.",
)  # fmt: skip
DUPLICATE_CERTIFICATE = _declared(
    W, "IST0138", "GatewayDuplicateCertificate",
    "Duplicate certificate in multiple gateways {} may cause 404s if clients re-use HTTP2 connections.",
    "Two Gateways of the same proxies use one certificate. A browser that has a connection for one host uses it "
    "for the "
    "other as well, and gets 404.",
    "Merge the servers into one Gateway, or use a certificate for each.",
)  # fmt: skip
SUBSET_AT_INGRESS = _declared(
    W, "IST0140", "IngressRouteRulesNotAffected",
    "Subset in virtual service {} has no effect on ingress gateway {} requests",
    "A VirtualService at a Gateway routes to a host without a subset, and expects another VirtualService of that "
    "host, "
    "for sidecars, to choose the subset. Gateways do not chain them.",
    "Name the subset in the VirtualService of the Gateway, too.",
)  # fmt: skip
RESERVED_USER = _declared(
    W, "IST0144", "InvalidApplicationUID", "User ID (UID) 1337 is reserved for the sidecar proxy.",
    "A Pod's application runs as the user whose traffic is not redirected.",
    "Run it as another user.",
)  # fmt: skip
CONFLICTING_GATEWAYS = _declared(
    E, "IST0145", "ConflictingGateways", "Conflict with gateways {} (workload selector {}, port {}, hosts {}).",
    "Two Gateways of the same proxies have the same port and the same host. Only the oldest has the host.",
    "Give each host to one Gateway.",
)  # fmt: skip
INJECTED_BY_DEFAULT = _declared(
    I, "IST0148", "NamespaceInjectionEnabledByDefault",
    "is enabled for Istio injection, as Istio is installed with enableNamespacesByDefault as true.",
    "A namespace of Kubernetes has no label, and its Pods get a proxy by default.",
    "Label the namespace to say what you want.",
)  # fmt: skip
CLAIM_WITHOUT_AUTHENTICATION = _declared(
    E, "IST0149", "JwtClaimBasedRoutingWithoutRequestAuthN",
    "The virtual service uses the JWT claim based routing (key: {}) but found no request authentication for the "
    "gateway "
    "({}) pod ({}). The request authentication must first be applied for the gateway pods to validate the JWT "
    "token and "
    "make the claims available for routing.",
    "A route matches a claim of a token, and no RequestAuthentication checks tokens there.",
    "Add a RequestAuthentication that selects the gateway's proxies.",
)  # fmt: skip
EXTERNAL_NAME_PORT = _declared(
    W, "IST0150", "ExternalNameServiceTypeInvalidPortName",
    "Port name for ExternalName service is invalid. Proxy may prevent tcp named ports and unmatched traffic for "
    "ports "
    "serving TCP protocol from being forwarded correctly",
    "A Service of type ExternalName has a TCP port.",
    "Name the port after its protocol, such as http or tls.",
)  # fmt: skip
RELATIVE_PATCH = _declared(
    W, "IST0151", "EnvoyFilterUsesRelativeOperation",
    "This EnvoyFilter does not have a priority and has a relative patch operation set which can cause the "
    "EnvoyFilter not "
    "to be applied. Using the INSERT_FIRST of ADD option or setting the priority may help in ensuring the "
    "EnvoyFilter is "
    "applied correctly.",
    "A patch refers to what another EnvoyFilter may add, and nothing says which comes first.",
    "Set spec.priority, or use INSERT_FIRST or ADD.",
)  # fmt: skip
REPLACE_PATCH = _declared(
    E, "IST0152", "EnvoyFilterUsesReplaceOperationIncorrectly",
    "The REPLACE operation is only valid for HTTP_FILTER and NETWORK_FILTER.",
    "REPLACE is not possible for what the patch applies to.",
    "Use MERGE, or REMOVE and ADD.",
)  # fmt: skip
ADD_PATCH = _declared(
    E, "IST0153", "EnvoyFilterUsesAddOperationIncorrectly",
    "The ADD operation will be ignored when applyTo is set to ROUTE_CONFIGURATION, or HTTP_ROUTE.",
    "ADD is not possible for what the patch applies to.",
    "Use INSERT_FIRST for a route, or MERGE.",
)  # fmt: skip
REMOVE_PATCH = _declared(
    E, "IST0154", "EnvoyFilterUsesRemoveOperationIncorrectly",
    "The REMOVE operation will be ignored when applyTo is set to ROUTE_CONFIGURATION, or HTTP_ROUTE.",
    "REMOVE is not possible for what the patch applies to.",
    "Change the VirtualService that the route comes from.",
)  # fmt: skip
RELATIVE_PATCH_OF_VERSION = _declared(
    W, "IST0155", "EnvoyFilterUsesRelativeOperationWithProxyVersion",
    "This EnvoyFilter does not have a priority and has a relative patch operation (NSTERT_BEFORE/AFTER, REPLACE, "
    "MERGE, "
    "DELETE) and proxyVersion set which can cause the EnvoyFilter not to be applied during an upgrade. Using the "
    "INSERT_FIRST or ADD option or setting the priority may help in ensuring the EnvoyFilter is applied correctly.",
    "A patch refers to a filter that another one adds for certain versions of the proxy only.",
    "Set spec.priority, or use INSERT_FIRST or ADD.",
)  # fmt: skip
EMPTY_PROVIDERS = _declared(
    W, "IST0157", "InvalidTelemetryProvider",
    'The Telemetry {} in namespace "{}" with empty providers will be ignored.',
    "A Telemetry has access logging without a provider, and the mesh config has no default for it.",
    "Name a provider, or set defaultProviders.accessLogging in the mesh config.",
)  # fmt: skip
CONFLICTING_TELEMETRIES = _declared(
    E, "IST0159", "ConflictingTelemetryWorkloadSelectors",
    'The Telemetries {} in namespace "{}" select the same workload pod "{}", which can lead to undefined behavior.',
    "Two Telemetries select the same workload. Only the oldest is used.",
    "Narrow one of the selectors, or merge the objects.",
)  # fmt: skip
TELEMETRIES_WITHOUT_SELECTOR = _declared(
    E, "IST0160", "MultipleTelemetriesWithoutWorkloadSelectors",
    'The Telemetries {} in namespace "{}" have no workload selector, which can lead to undefined behavior.',
    "Two Telemetries of a namespace have no selector. Only the oldest is used.",
    "Keep one, or give the other a selector.",
)  # fmt: skip
INVALID_CREDENTIAL = _declared(
    E, "IST0161", "InvalidGatewayCredential",
    "The credential referenced by the Gateway {} in namespace {} is invalid, which can cause the traffic not to "
    "work as "
    "expected.",
    "A Gateway's credential is there, and cannot be used: a part is missing, is no certificate or key, or has "
    "expired.",
    "Fix the credential. The message about the credential itself says what is wrong with it.",
)  # fmt: skip
PORT_NOT_ON_SERVICE = _declared(
    W, "IST0162", "GatewayPortNotDefinedOnService",
    "The gateway is listening on a target port (port {}) that is not defined in the Service associated with its "
    "workload "
    "instances (Pod selector {}). If you need to access the gateway port through the gateway Service, it will not be "
    "available.",
    "A Gateway has a port that the Service in front of its Pods does not have.",
    "Add the port to the Service.",
)  # fmt: skip
INTERNAL_GATEWAY = _declared(
    W, "IST0165", "ReferencedInternalGateway",
    "Gateway reference in VirtualService {} is to an implementation-generated internal Gateway: {}.",
    "A VirtualService names a Gateway that Istio makes of a Gateway of Kubernetes.",
    "Name a Gateway of your own.",
)  # fmt: skip
INEFFECTIVE_SELECTOR = _declared(
    W, "IST0166", "IneffectiveSelector",
    "Ineffective selector on Kubernetes Gateway {}. Use the TargetRef field instead.",
    "A policy selects the Pods of a Gateway of Kubernetes by labels.",
    "Use targetRefs.",
)  # fmt: skip
INEFFECTIVE_POLICY = _declared(
    W, "IST0167", "IneffectivePolicy", "The policy has no impact: {}.",
    "The object applies to workloads of ambient mode, which have no sidecar.",
    "Remove it.",
)  # fmt: skip
NEGATIVE_CONDITION = _declared(
    W, "IST0171", "NegativeConditionStatus",
    "A condition with a negative status is present: type={}, reason={}, message={}.",
    "The status of the object, as a control plane wrote it, says that something failed.",
    "See reason and message.",
)  # fmt: skip
SUBSET_SELECTS_NOTHING = _declared(
    E, "IST0173", "DestinationRuleSubsetNotSelectPods",
    "The Subset {} defined in the DestinationRule does not select any pods. Which may lead to 503 UH "
    "(NoHealthyUpstream).",
    "No endpoint of the service has the labels of a subset.",
    "Correct the labels of the subset, or those of the workloads.",
)  # fmt: skip
UNKNOWN_RULE_HOST = _declared(
    W, "IST0174", "UnknownDestinationRuleHost",
    "The host {} defined in the DestinationRule does not match any services in the mesh.",
    "A DestinationRule is for a host that does not exist, so it has no effect.",
    "Correct the host, or remove the rule.",
)  # fmt: skip
UNRESTRICTED_KEY_SETS = _declared(
    W, "IST0175", "JwksUriFetchUnrestricted",
    "BLOCKED_CIDRS_IN_JWKS_URIS is not configured but {} RequestAuthentication resource(s) exist ({}). Consider "
    "configuring it to restrict JWKS URI fetches to trusted networks.",
    "A Deployment of istiod fetches key sets from any address.",
    "Set BLOCKED_CIDRS_IN_JWKS_URIS in its environment.",
)  # fmt: skip
CONFLICTING_PROTOCOLS = _declared(
    W, "IST0177", "ConflictingServiceEntryProtocol",
    'Multiple ServiceEntries ({}) define the same host "{}" and port {} with conflicting protocols ({}).',
    "Two ServiceEntries disagree on the protocol of a port of a host, and some namespace sees both.",
    "Use the same protocol in both.",
)  # fmt: skip
FIELD_WITHOUT_EFFECT = _declared(
    W, "MP0001", "FieldWithoutEffect", "{}",
    "A field is valid, and nothing follows from it here.",
    "Remove it, or do what the message says instead.",
)  # fmt: skip
UNREADABLE = _declared(
    E, "MP0002", "UnreadableDocument", "{}",
    "A file or a document in it cannot be read: wrong indentation, a tab, a missing quote.",
    "Correct the YAML at that line. Indent with spaces, the fields of one object by the same number of them.",
)  # fmt: skip
DUPLICATE_OBJECT = _declared(
    E, "MP0003", "DuplicateObject", "{}",
    "Two objects of one kind, namespace and name. The first one is in force.",
    "Rename or remove one of them.",
)  # fmt: skip
IGNORED_OBJECT = _declared(
    W, "MP0004", "IgnoredObject", "ignored: {}",
    "An object of a kind that has no effect here, although one may expect it.",
    "Write what the message names instead, or move the object out of the folder.",
)  # fmt: skip
PATCH_NOT_APPLIED = _declared(
    E, "MP0006", "EnvoyFilterPatchNotApplied", "{}",
    "A patch of an EnvoyFilter cannot be applied, or is left out because Envoy would refuse it or wait for ever for "
    "what it names. The others are applied.",
    "Correct the patch, as the message says: its value is a message of Envoy's API.",
)  # fmt: skip
PATCH_IN_PART = _declared(
    W, "MP0007", "EnvoyFilterPatchIncomplete", "{}",
    "A part of a patch has no effect, or something is missing in it.",
    "Look at the field that the message names.",
)  # fmt: skip
UNUSABLE_REFERENCE = _declared(
    W, "MP0008", "UnusableReference", "{}",
    "An object names a service or a role that is unknown, or a provider whose service is. Also said of every provider "
    "of the mesh config whose service or port does not exist.",
    "Declare the service, or correct the name.",
)  # fmt: skip
MESH_SETTINGS = _declared(
    E, "MP0009", "InvalidMeshSettings", "{}",
    "The mesh config or the networks file is refused.",
    "Correct the field; the control plane does not start with it, and keeps the last good one while it runs.",
)  # fmt: skip
PLAINTEXT_TO_STRICT = _declared(
    E, "MP0010", "PlaintextToStrict",
    "tells clients of {} to send plaintext, and {} requires mutual TLS there (STRICT): requests fail",
    "A DestinationRule turns TLS off towards workloads that only accept mutual TLS.",
    "Set the mode to ISTIO_MUTUAL or remove tls from the DestinationRule, or make the PeerAuthentication PERMISSIVE.",
)  # fmt: skip
MUTUAL_TO_PLAINTEXT = _declared(
    E, "MP0011", "MutualTlsToPlaintext",
    "tells clients of {} to use mutual TLS, and {} turns it off there (DISABLE): requests fail",
    "A DestinationRule uses the mesh's mutual TLS towards workloads that only accept plaintext.",
    "Remove tls from the DestinationRule, or set the PeerAuthentication to PERMISSIVE.",
)  # fmt: skip
WEIGHTS = _declared(
    W, "MP0012", "WeightsDoNotSumTo100", "weights sum to {}, not to 100: each gets its share of {}",
    "The weights of a route's destinations are shares of their sum. A sum other than 100 is mostly a slip.",
    "Let them sum to 100.",
)  # fmt: skip
SELECTS_NOBODY = _declared(
    W, "MP0013", "SelectsNoWorkload", "no workload that is known has the labels {}{}",
    "An object applies to nobody: no workload of its namespace has the labels of its selector.",
    "Correct the selector or the namespace, or remove the object.",
)  # fmt: skip
GATEWAY_WITHOUT_PROXY = _declared(
    W, "MP0014", "GatewayWithoutProxy", "no connected gateway proxy has the labels {}",
    "No proxy of type router that is connected has the labels of a Gateway's selector. Only a live plane knows this.",
    "Start a gateway with these labels, or correct the selector.",
)  # fmt: skip
GATEWAY_PORT_PROTOCOLS = _declared(
    E, "MP0015", "GatewayPortProtocols",
    "port {} is {} here and {} in {}: the same proxies cannot serve both, and the oldest object wins",
    "Two Gateways of the same proxies use one port for protocols that exclude each other.",
    "Use another port for one of them, or the same protocol in both.",
)  # fmt: skip
PORT_WITHOUT_PROTOCOL = _declared(
    I, "MP0016", "PortWithoutProtocol", "port {} ({}) says no protocol: proxies guess it from the traffic",
    "The port of a ServiceEntry has neither a protocol nor a name that begins with one. HTTP is routed only where it "
    "is recognized, and a server that speaks first is kept waiting.",
    "Set protocol, such as HTTP, or begin the name with one, as in http-web.",
)  # fmt: skip
SHADOWED_POLICY = _declared(
    W, "MP0017", "ShadowedObject", "is not used: {} is for the same workloads and older",
    "Of some kinds only the oldest object of a namespace, or of a selector, is used.",
    "Merge the two objects, and remove one.",
)  # fmt: skip
SHADOWED_RULE = _declared(
    W, "MP0018", "DestinationRulePartlyUsed", "{} of {} is for the same host and older: of this one, {} not used",
    "Of two DestinationRules for a host that the same namespaces see, the oldest wins. The other one adds "
    "subsets only.",
    "Merge them into one.",
)  # fmt: skip
HOST_ALMOST_KNOWN = _declared(
    W, "MP0019", "HostAlmostKnown", "no service has the host {}; did you mean {}?",
    "The host of a VirtualService is nearly that of a service, and its routes are not used for that service.",
    "Write the full name of the service.",
)  # fmt: skip
SHADOWED_MATCH = _declared(
    W, "MP0020", "ShadowedMatch", "is never used: {} matches every request that this one does",
    "A match comes after a wider one that takes all its requests.",
    "Move the rule before the wider one.",
)  # fmt: skip
CREDENTIAL = _declared(
    E, "MP0021", "CredentialNotFound", "there is no credential {} in the namespace {}",
    "A DestinationRule names a credential that is in no Secret and in no folder of --secrets-dir.",
    "Add the credential, or correct credentialName.",
)  # fmt: skip
SHARED_TCP_PORT = _declared(
    W, "MP0021", "SharedTcpPort",
    "port {} is TCP, and {} has it as well, both without addresses: clients reach only one of them",
    "Two TCP services without addresses cannot be told apart by clients: the port is all that a connection says.",
    "Give each an address or a port of its own, or turn on DNS capture with automatic addresses.",
)  # fmt: skip
UNKNOWN_PROVIDER = _declared(
    E, "MP0022", "UnknownExtensionProvider", "{}",
    "An object names a provider that the mesh config does not have, or not for this: of a CUSTOM AuthorizationPolicy, "
    "whose requests are denied, or of a Telemetry, which has no effect there. A CUSTOM policy also gets it if the "
    "provider's service or port does not exist.",
    "Add the provider to extensionProviders, correct the name, or declare the service.",
)  # fmt: skip
NOT_ACCEPTED = _declared(
    E, "MP0023", "NotAccepted", "{}is not accepted: {} [{}]",
    "An object of the Gateway API, a listener of it, or its attachment to a parent is refused: its condition Accepted "
    "says why. What is refused has no effect.",
    "Correct what the message names, in this object or in the parent that refuses it.",
)  # fmt: skip
REFERENCES_UNRESOLVED = _declared(
    E, "MP0024", "ReferencesNotResolved", "{}has a reference that cannot be used: {} [{}]",
    "An object of the Gateway API names a backend or a credential that is missing, of an unknown kind, or of another "
    "namespace that no ReferenceGrant opens. Requests for it are answered 500.",
    "Correct the reference, or add what it names, or a ReferenceGrant in the namespace of the target.",
)  # fmt: skip
NOT_PROGRAMMED = _declared(
    W, "MP0025", "NotProgrammed", "the Gateway is not programmed: {} [{}]",
    "A Gateway of the Gateway API has no service with endpoints on its ports, and no connected router has its name as "
    "a label.",
    "Label routers with the Gateway's name and add their service, or name the service in spec.addresses.",
)  # fmt: skip
PORTS_LEFT_OUT = _declared(
    W, "MP0035", "ServiceEntryPortsLeftOut",
    "the ports {} are left out: {}, which is older, declares {} with resolution {} and location {}",
    "The oldest of several ServiceEntries of a namespace for one host declares the service. Younger ones add ports if "
    "their resolution and location are the same.",
    "Give all ServiceEntries of a host the same resolution and location, or use another host.",
)  # fmt: skip
HOST_OF_OTHERS = _declared(
    W, "MP0026", "HostOfAnotherNamespace", "the host {} of {} belongs to namespace {} ({}), which {}: {}",
    "Objects of two namespaces have the same host, and some clients see both. The host stays with the namespace that "
    "had it first; of objects that are seen together the oldest, then the first by name, has it.",
    "Remove the host from one of them, or name its namespace in hostOwners of the mesh config.",
)  # fmt: skip
HOST_NOT_ALLOWED = _declared(
    E, "MP0027", "HostNotAllowed", "{}",
    "The object names a host that hostOwners of the mesh config gives to another namespace. It is refused; its last "
    "good version is kept.",
    "Remove the host, or change hostOwners.",
)  # fmt: skip
DENY_PASSED = _declared(
    I, "MP0028", "DenyHasOtherSpellings", "{} does not deny {}",
    "A DENY rule compares text. A request for the same thing in another spelling passes: a host with a dot at its end, "
    "or a path with two slashes or an encoded one, which pathNormalization leaves as it is.",
    "List the host with a dot, too; for paths set pathNormalization to DECODE_AND_MERGE_SLASHES. Safer is to allow "
    "what is wanted.",
)  # fmt: skip
PATCH_MATCHES_NOTHING = _declared(
    W, "MP0029", "PatchMatchesNothing", "{}",
    "A patch of an EnvoyFilter matches nothing at the gateways and workloads that the files show, so it has no effect.",
    "Compare the match with what the message names. The virtual hosts of gateways have the port in their names.",
)  # fmt: skip
PORT_OF_SERVICE = _declared(
    W, "MP0030", "PortOfService", "no workload that it selects listens on {}: the port of {} is {} there",
    "A policy names the port that clients of a service use. Policies count the port that the workload listens on, so a "
    "rule for another one has no effect.",
    "Name the workload's port (targetPort).",
)  # fmt: skip
TCP_PORTS_CLOSED = _declared(
    W, "MP0031", "TcpPortsClosed", "connections to the TCP ports {} are {}, whatever this field says",
    "A DENY rule, or a CUSTOM one of a gRPC provider, has a condition that only HTTP requests can meet, and selects "
    "workloads with TCP ports. There the rule counts without the condition, as in Istio.",
    "Add the HTTP ports of the workload to the rule (ports).",
)  # fmt: skip
UNKNOWN_PRINCIPAL = _declared(
    W, "MP0032", "UnknownPrincipal", "no workload that is known has the identity {}; did you mean {}?",
    "An AuthorizationPolicy names an identity that no workload has, and that is nearly that of one. Said by a live "
    "plane, and where the files have Pods.",
    "Correct the name of the service account or its namespace.",
)  # fmt: skip

CODES: Mapping[str, MessageType] = MappingProxyType({declared.code: declared for declared in ALL})
"""All types by code."""
