// Command layouts prints how the real server's internal Go structs look when an error message shows them: for
// every struct its fields in order, each as "GoName fieldInV1 what-it-holds".
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/apis/core"
)

var leaves = map[string]string{
	"Quantity": "Q", "Time": "T", "MicroTime": "T", "IntOrString": "X", "LabelSelector": "L", "ObjectMeta": "M",
}
var layouts = map[string][]string{}

func holds(t, o reflect.Type) string {
	if leaf, ok := leaves[t.Name()]; ok && !strings.Contains(t.PkgPath(), "apis/core") {
		return leaf
	}
	switch t.Kind() {
	case reflect.Pointer:
		if o.Kind() == reflect.Pointer {
			o = o.Elem()
		}
		return "*" + holds(t.Elem(), o)
	case reflect.String:
		return "S"
	case reflect.Bool:
		return "B"
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return "Y"
		}
		return "[" + holds(t.Elem(), o.Elem())
	case reflect.Map:
		return "{" + holds(t.Elem(), o.Elem())
	case reflect.Struct:
		if o.Kind() == reflect.Pointer {
			o = o.Elem()
		}
		visit(t, o)
		return t.Name()
	case reflect.Int32, reflect.Int64, reflect.Int:
		return "I"
	}
	panic(fmt.Sprint(t))
}

func visit(t, o reflect.Type) {
	if _, seen := layouts[t.Name()]; seen {
		return
	}
	layouts[t.Name()] = nil
	layouts[t.Name()] = fields(t, o)
}

func fields(t, o reflect.Type) (out []string) {
	for i := 0; i < t.NumField(); i++ {
		f := t.Field(i)
		if f.Type.Name() == "TypeMeta" {
			continue
		}
		if f.Anonymous && f.Type.Name() == "ObjectMeta" {
			out = append(out, "- metadata M")
			continue
		}
		if f.Anonymous {
			g, ok := o.FieldByName(f.Name)
			if !ok {
				panic(f.Name)
			}
			out = append(out, fields(f.Type, g.Type)...)
			continue
		}
		g, ok := o.FieldByName(f.Name)
		if !ok {
			if t.Name() == "PodSecurityContext" {
				h, _ := reflect.TypeOf(v1.PodSpec{}).FieldByName(f.Name)
				out = append(out, f.Name+" ^"+strings.Split(h.Tag.Get("json"), ",")[0]+" "+holds(f.Type, h.Type))
				continue
			}
			fmt.Fprintln(os.Stderr, "no v1 field for", t.Name(), f.Name)
			continue
		}
		out = append(out, f.Name+" "+strings.Split(g.Tag.Get("json"), ",")[0]+" "+holds(f.Type, g.Type))
	}
	return out
}

func main() {
	visit(reflect.TypeOf(core.PodTemplateSpec{}), reflect.TypeOf(v1.PodTemplateSpec{}))
	visit(reflect.TypeOf(core.PersistentVolumeClaimSpec{}), reflect.TypeOf(v1.PersistentVolumeClaimSpec{}))
	visit(reflect.TypeOf(core.PersistentVolumeSource{}), reflect.TypeOf(v1.PersistentVolumeSource{}))
	if err := json.NewEncoder(os.Stdout).Encode(layouts); err != nil {
		panic(err)
	}
}
