// Command shapes prints how the Go types of the built-in kinds are written as JSON: for every struct, each
// field's name, whether an empty value is left out, and what it holds. Run it in a module that requires
// k8s.io/api, k8s.io/apimachinery and k8s.io/apiextensions-apiserver of the version that schemas.json is of.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"strings"

	apps "k8s.io/api/apps/v1"
	autoscaling "k8s.io/api/autoscaling/v1"
	batch "k8s.io/api/batch/v1"
	coordination "k8s.io/api/coordination/v1"
	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	events "k8s.io/api/events/v1"
	networking "k8s.io/api/networking/v1"
	node "k8s.io/api/node/v1"
	policy "k8s.io/api/policy/v1"
	rbac "k8s.io/api/rbac/v1"
	scheduling "k8s.io/api/scheduling/v1"
	storage "k8s.io/api/storage/v1"
	crd "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

var leaves = map[string]string{
	"k8s.io/apimachinery/pkg/api/resource.Quantity":                            "Q",
	"k8s.io/apimachinery/pkg/apis/meta/v1.Time":                                "T",
	"k8s.io/apimachinery/pkg/apis/meta/v1.MicroTime":                           "M",
	"k8s.io/apimachinery/pkg/util/intstr.IntOrString":                          "X",
	"k8s.io/apimachinery/pkg/runtime.RawExtension":                             "R",
	"k8s.io/apimachinery/pkg/apis/meta/v1.FieldsV1":                            "R",
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1.JSON":            "R",
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1.JSONSchemaProps": "R",
}

var shapes = map[string]map[string]string{}

func name(t reflect.Type) string {
	parts := strings.Split(t.PkgPath(), "/")
	return parts[len(parts)-2] + "." + t.Name()
}

func holds(t reflect.Type) string {
	if leaf, ok := leaves[t.PkgPath()+"."+t.Name()]; ok {
		return leaf
	}
	switch t.Kind() {
	case reflect.Pointer:
		return "*" + holds(t.Elem())
	case reflect.String:
		return "S"
	case reflect.Bool:
		return "B"
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return "Y"
		}
		return "[" + holds(t.Elem())
	case reflect.Map:
		return "{" + holds(t.Elem())
	case reflect.Struct:
		visit(t)
		return name(t)
	case reflect.Int32, reflect.Int64, reflect.Int, reflect.Float64, reflect.Uint8:
		return "I"
	}
	panic(fmt.Sprint(t))
}

func visit(t reflect.Type) {
	if _, seen := shapes[name(t)]; seen {
		return
	}
	fields := map[string]string{}
	shapes[name(t)] = fields
	fill(t, fields)
}

func fill(t reflect.Type, fields map[string]string) {
	for i := 0; i < t.NumField(); i++ {
		f := t.Field(i)
		tag := strings.Split(f.Tag.Get("json"), ",")
		if strings.Contains(f.Tag.Get("json"), "inline") || (f.Anonymous && tag[0] == "") {
			if f.Type.Name() != "TypeMeta" {
				fill(f.Type, fields)
			}
			continue
		}
		if tag[0] == "-" || tag[0] == "" {
			continue
		}
		flags := "!"
		for _, o := range tag[1:] {
			if o == "omitempty" && flags == "!" {
				flags = ""
			}
			if o == "omitzero" {
				flags = "0"
			}
		}
		fields[tag[0]] = flags + holds(f.Type)
	}
}

func main() {
	for _, o := range []any{
		core.Namespace{}, core.Pod{}, core.Service{}, core.Endpoints{}, core.ConfigMap{}, core.Secret{},
		core.ServiceAccount{}, core.PersistentVolume{}, core.PersistentVolumeClaim{}, core.Node{}, core.Event{},
		core.PodTemplate{}, core.LimitRange{}, core.ResourceQuota{}, core.Binding{}, policy.Eviction{}, autoscaling.Scale{},
		apps.Deployment{}, apps.ReplicaSet{}, apps.StatefulSet{}, apps.DaemonSet{}, apps.ControllerRevision{},
		batch.Job{}, batch.CronJob{}, coordination.Lease{}, discovery.EndpointSlice{}, events.Event{},
		networking.NetworkPolicy{}, node.RuntimeClass{}, policy.PodDisruptionBudget{},
		rbac.Role{}, rbac.RoleBinding{}, rbac.ClusterRole{}, rbac.ClusterRoleBinding{},
		scheduling.PriorityClass{}, storage.StorageClass{}, crd.CustomResourceDefinition{},
	} {
		visit(reflect.TypeOf(o))
	}
	enc := json.NewEncoder(os.Stdout)
	if err := enc.Encode(shapes); err != nil {
		panic(err)
	}
}
