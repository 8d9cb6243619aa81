//! What Go calls the types of some fields, because decode errors name them.
//!
//! OpenAPI only says "string" for a Go string type of its own; and Go inlines structs that OpenAPI flattens.

/// The Go type of a field (or of the elements of its list) where it is not the plain one.
pub(super) fn named_type(owner: &str, field: &str) -> Option<&'static str> {
    let is = |entry: &str| entry.split_once('.') == Some((owner, field));
    NAMED.iter().find(|(_, fields)| fields.iter().any(|entry| is(entry))).map(|(ty, _)| *ty)
}

/// The inlined struct that a field really belongs to; it shows in the path of a decode error.
pub(super) fn inlined(owner: &str, field: &str) -> Option<&'static str> {
    let found = match owner {
        "Volume" => field != "name",
        "EphemeralContainer" => field != "targetContainerName",
        "Probe" => matches!(field, "exec" | "httpGet" | "tcpSocket" | "grpc"),
        "PersistentVolumeSpec" => !matches!(
            field,
            "capacity"
                | "accessModes"
                | "claimRef"
                | "persistentVolumeReclaimPolicy"
                | "storageClassName"
                | "mountOptions"
                | "volumeMode"
                | "nodeAffinity"
                | "volumeAttributesClassName"
        ),
        "ConfigMapEnvSource"
        | "ConfigMapKeySelector"
        | "ConfigMapProjection"
        | "ConfigMapVolumeSource"
        | "SecretEnvSource"
        | "SecretKeySelector"
        | "SecretProjection" => field == "name",
        _ => false,
    };
    let name = match owner {
        "Volume" => "VolumeSource",
        "EphemeralContainer" => "EphemeralContainerCommon",
        "Probe" => "ProbeHandler",
        "PersistentVolumeSpec" => "PersistentVolumeSource",
        _ => "LocalObjectReference",
    };
    found.then_some(name)
}

const NAMED: &[(&str, &[&str])] = &[
    (
        "types.UID",
        &[
            "ConfigMapNodeConfigSource.uid",
            "ObjectMeta.uid",
            "ObjectReference.uid",
            "OwnerReference.uid",
            "Preconditions.uid",
            "StatusDetails.uid",
            "UncountedTerminatedPods.failed",
            "UncountedTerminatedPods.succeeded",
        ],
    ),
    ("v1.AddressType", &["EndpointSlice.addressType"]),
    ("v1.AppArmorProfileType", &["AppArmorProfile.type"]),
    ("v1.AzureDataDiskCachingMode", &["AzureDiskVolumeSource.cachingMode"]),
    ("v1.AzureDataDiskKind", &["AzureDiskVolumeSource.kind"]),
    ("v1.Capability", &["Capabilities.add", "Capabilities.drop"]),
    ("v1.CauseType", &["StatusCause.reason"]),
    ("v1.CompletionMode", &["JobSpec.completionMode"]),
    ("v1.ConcurrencyPolicy", &["CronJobSpec.concurrencyPolicy"]),
    (
        "v1.ConditionStatus",
        &[
            "Condition.status",
            "CustomResourceDefinitionCondition.status",
            "DaemonSetCondition.status",
            "DeploymentCondition.status",
            "JobCondition.status",
            "NamespaceCondition.status",
            "NodeCondition.status",
            "PersistentVolumeClaimCondition.status",
            "PodCondition.status",
            "PodFailurePolicyOnPodConditionsPattern.status",
            "ReplicaSetCondition.status",
            "StatefulSetCondition.status",
        ],
    ),
    ("v1.ContainerRestartPolicy", &["Container.restartPolicy", "EphemeralContainer.restartPolicy"]),
    ("v1.ContainerRestartRuleAction", &["ContainerRestartRule.action"]),
    ("v1.ContainerRestartRuleOnExitCodesOperator", &["ContainerRestartRuleOnExitCodes.operator"]),
    ("v1.ConversionStrategyType", &["CustomResourceConversion.strategy"]),
    ("v1.CoordinatedLeaseStrategy", &["LeaseSpec.strategy"]),
    ("v1.CustomResourceDefinitionConditionType", &["CustomResourceDefinitionCondition.type"]),
    ("v1.DNSPolicy", &["PodSpec.dnsPolicy"]),
    ("v1.DaemonSetConditionType", &["DaemonSetCondition.type"]),
    ("v1.DaemonSetUpdateStrategyType", &["DaemonSetUpdateStrategy.type"]),
    ("v1.DeletionPropagation", &["DeleteOptions.propagationPolicy"]),
    ("v1.DeploymentConditionType", &["DeploymentCondition.type"]),
    ("v1.DeploymentStrategyType", &["DeploymentStrategy.type"]),
    ("v1.FieldValueErrorReason", &["ValidationRule.reason"]),
    ("v1.FinalizerName", &["NamespaceSpec.finalizers"]),
    ("v1.HostPathType", &["HostPathVolumeSource.type"]),
    ("v1.IPFamily", &["ServiceSpec.ipFamilies"]),
    ("v1.IPFamilyPolicy", &["ServiceSpec.ipFamilyPolicy"]),
    ("v1.JSONSchemaDefinitions", &["JSONSchemaProps.definitions"]),
    ("v1.JSONSchemaDependencies", &["JSONSchemaProps.dependencies"]),
    ("v1.JSONSchemaURL", &["JSONSchemaProps.$schema"]),
    ("v1.JobConditionType", &["JobCondition.type"]),
    ("v1.LabelSelectorOperator", &["LabelSelectorRequirement.operator"]),
    ("v1.LimitType", &["LimitRangeItem.type"]),
    ("v1.LoadBalancerIPMode", &["LoadBalancerIngress.ipMode"]),
    ("v1.ManagedFieldsOperationType", &["ManagedFieldsEntry.operation"]),
    ("v1.MountPropagationMode", &["VolumeMount.mountPropagation"]),
    ("v1.NamespaceConditionType", &["NamespaceCondition.type"]),
    ("v1.NamespacePhase", &["NamespaceStatus.phase"]),
    ("v1.NodeAddressType", &["NodeAddress.type"]),
    ("v1.NodeConditionType", &["NodeCondition.type"]),
    (
        "v1.NodeInclusionPolicy",
        &["TopologySpreadConstraint.nodeAffinityPolicy", "TopologySpreadConstraint.nodeTaintsPolicy"],
    ),
    ("v1.NodePhase", &["NodeStatus.phase"]),
    ("v1.NodeSelectorOperator", &["NodeSelectorRequirement.operator"]),
    ("v1.OSName", &["PodOS.name"]),
    (
        "v1.PersistentVolumeAccessMode",
        &[
            "PersistentVolumeClaimSpec.accessModes",
            "PersistentVolumeClaimStatus.accessModes",
            "PersistentVolumeSpec.accessModes",
        ],
    ),
    ("v1.PersistentVolumeClaimConditionType", &["PersistentVolumeClaimCondition.type"]),
    ("v1.PersistentVolumeClaimModifyVolumeStatus", &["ModifyVolumeStatus.status"]),
    ("v1.PersistentVolumeClaimPhase", &["PersistentVolumeClaimStatus.phase"]),
    (
        "v1.PersistentVolumeClaimRetentionPolicyType",
        &[
            "StatefulSetPersistentVolumeClaimRetentionPolicy.whenDeleted",
            "StatefulSetPersistentVolumeClaimRetentionPolicy.whenScaled",
        ],
    ),
    ("v1.PersistentVolumeMode", &["PersistentVolumeClaimSpec.volumeMode", "PersistentVolumeSpec.volumeMode"]),
    ("v1.PersistentVolumePhase", &["PersistentVolumeStatus.phase"]),
    (
        "v1.PersistentVolumeReclaimPolicy",
        &["PersistentVolumeSpec.persistentVolumeReclaimPolicy", "StorageClass.reclaimPolicy"],
    ),
    (
        "v1.PodConditionType",
        &[
            "PodCondition.type",
            "PodFailurePolicyOnPodConditionsPattern.type",
            "PodReadinessGate.conditionType",
        ],
    ),
    ("v1.PodFSGroupChangePolicy", &["PodSecurityContext.fsGroupChangePolicy"]),
    ("v1.PodFailurePolicyAction", &["PodFailurePolicyRule.action"]),
    ("v1.PodFailurePolicyOnExitCodesOperator", &["PodFailurePolicyOnExitCodesRequirement.operator"]),
    ("v1.PodManagementPolicyType", &["StatefulSetSpec.podManagementPolicy"]),
    ("v1.PodPhase", &["PodStatus.phase"]),
    ("v1.PodQOSClass", &["PodStatus.qosClass"]),
    ("v1.PodReplacementPolicy", &["JobSpec.podReplacementPolicy"]),
    ("v1.PodResizeStatus", &["PodStatus.resize"]),
    ("v1.PodSELinuxChangePolicy", &["PodSecurityContext.seLinuxChangePolicy"]),
    ("v1.PolicyType", &["NetworkPolicySpec.policyTypes"]),
    ("v1.PreemptionPolicy", &["PodSpec.preemptionPolicy", "PriorityClass.preemptionPolicy"]),
    ("v1.ProcMountType", &["SecurityContext.procMount"]),
    (
        "v1.Protocol",
        &[
            "ContainerPort.protocol",
            "EndpointPort.protocol",
            "NetworkPolicyPort.protocol",
            "PortStatus.protocol",
            "ServicePort.protocol",
        ],
    ),
    (
        "v1.PullPolicy",
        &["Container.imagePullPolicy", "EphemeralContainer.imagePullPolicy", "ImageVolumeSource.pullPolicy"],
    ),
    ("v1.RecursiveReadOnlyMode", &["VolumeMount.recursiveReadOnly", "VolumeMountStatus.recursiveReadOnly"]),
    ("v1.ReplicaSetConditionType", &["ReplicaSetCondition.type"]),
    ("v1.ResourceHealthStatus", &["ResourceHealth.health"]),
    ("v1.ResourceID", &["ResourceHealth.resourceID"]),
    (
        "v1.ResourceList",
        &[
            "ContainerStatus.allocatedResources",
            "LimitRangeItem.default",
            "LimitRangeItem.defaultRequest",
            "LimitRangeItem.max",
            "LimitRangeItem.maxLimitRequestRatio",
            "LimitRangeItem.min",
            "NodeStatus.allocatable",
            "NodeStatus.capacity",
            "Overhead.podFixed",
            "PersistentVolumeClaimStatus.allocatedResources",
            "PersistentVolumeClaimStatus.capacity",
            "PersistentVolumeSpec.capacity",
            "PodSpec.overhead",
            "PodStatus.allocatedResources",
            "ResourceQuotaSpec.hard",
            "ResourceQuotaStatus.hard",
            "ResourceQuotaStatus.used",
            "ResourceRequirements.limits",
            "ResourceRequirements.requests",
            "VolumeResourceRequirements.limits",
            "VolumeResourceRequirements.requests",
        ],
    ),
    ("v1.ResourceName", &["ContainerResizePolicy.resourceName", "ResourceStatus.name"]),
    ("v1.ResourceQuotaScope", &["ResourceQuotaSpec.scopes", "ScopedResourceSelectorRequirement.scopeName"]),
    ("v1.ResourceResizeRestartPolicy", &["ContainerResizePolicy.restartPolicy"]),
    ("v1.ResourceScope", &["CustomResourceDefinitionSpec.scope"]),
    ("v1.RestartPolicy", &["PodSpec.restartPolicy"]),
    ("v1.ScopeSelectorOperator", &["ScopedResourceSelectorRequirement.operator"]),
    ("v1.SeccompProfileType", &["SeccompProfile.type"]),
    ("v1.SecretType", &["Secret.type"]),
    ("v1.ServiceAffinity", &["ServiceSpec.sessionAffinity"]),
    ("v1.ServiceExternalTrafficPolicy", &["ServiceSpec.externalTrafficPolicy"]),
    ("v1.ServiceInternalTrafficPolicy", &["ServiceSpec.internalTrafficPolicy"]),
    ("v1.ServiceType", &["ServiceSpec.type"]),
    ("v1.Signal", &["ContainerStatus.stopSignal", "Lifecycle.stopSignal"]),
    ("v1.StatefulSetConditionType", &["StatefulSetCondition.type"]),
    ("v1.StatefulSetUpdateStrategyType", &["StatefulSetUpdateStrategy.type"]),
    ("v1.StatusReason", &["Status.reason"]),
    ("v1.StorageMedium", &["EmptyDirVolumeSource.medium"]),
    ("v1.SupplementalGroupsPolicy", &["PodSecurityContext.supplementalGroupsPolicy"]),
    ("v1.TaintEffect", &["Taint.effect", "Toleration.effect"]),
    (
        "v1.TerminationMessagePolicy",
        &["Container.terminationMessagePolicy", "EphemeralContainer.terminationMessagePolicy"],
    ),
    ("v1.TolerationOperator", &["Toleration.operator"]),
    ("v1.URIScheme", &["HTTPGetAction.scheme"]),
    ("v1.UnhealthyPodEvictionPolicyType", &["PodDisruptionBudgetSpec.unhealthyPodEvictionPolicy"]),
    ("v1.UniqueVolumeName", &["AttachedVolume.name", "NodeStatus.volumesInUse"]),
    ("v1.UnsatisfiableConstraintAction", &["TopologySpreadConstraint.whenUnsatisfiable"]),
    ("v1.VolumeBindingMode", &["StorageClass.volumeBindingMode"]),
];
