// Renders templates with Go's own text/template and sprig, and with the functions that Helm adds to them: what the crate is
// compared with. One case as JSON in each line of the input, one result as JSON in each line of the output.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"text/template"
	"time"

	"github.com/BurntSushi/toml"
	"github.com/Masterminds/sprig/v3"
	"sigs.k8s.io/yaml"
)

// A set of templates, the first of which is rendered.
type testCase struct {
	Templates []struct{ Name, Text string }
	Data      json.RawMessage
	// As Go's option is called: default, zero, error.
	MissingKey string
}

type result struct {
	Output *string `json:"output,omitempty"`
	Error  string  `json:"error,omitempty"`
}

func main() {
	input := bufio.NewScanner(os.Stdin)
	input.Buffer(nil, 64<<20)
	output := bufio.NewWriter(os.Stdout)
	for input.Scan() {
		late := time.AfterFunc(time.Minute, func() {
			fmt.Fprintln(os.Stderr, "no answer to", input.Text())
			os.Exit(1)
		})
		var given testCase
		if err := json.Unmarshal(input.Bytes(), &given); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		line, err := json.Marshal(given.run())
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		output.Write(append(line, '\n'))
		output.Flush()
		late.Stop()
	}
}

func (c testCase) run() (answer result) {
	// Some of sprig's functions panic where others return an error, and not everywhere does text/template catch that.
	defer func() {
		if cause := recover(); cause != nil {
			answer = result{Error: fmt.Sprint("panic: ", cause)}
		}
	}()
	text, err := c.render()
	if err != nil {
		return result{Error: err.Error()}
	}
	return result{Output: &text}
}

func (c testCase) render() (string, error) {
	data, err := values(c.Data)
	if err != nil {
		return "", err
	}
	set := template.New("set")
	set.Option("missingkey=" + c.MissingKey)
	set.Funcs(functions(set, c.MissingKey))
	for _, one := range c.Templates {
		if _, err := set.New(one.Name).Parse(one.Text); err != nil {
			return "", err
		}
	}
	var out strings.Builder
	if err := set.ExecuteTemplate(&out, c.Templates[0].Name, data); err != nil {
		return "", err
	}
	return c.withoutNoValue(out.String()), nil
}

// Helm renders with missingkey=zero and takes the words away that Go then prints.
func (c testCase) withoutNoValue(text string) string {
	if c.MissingKey == "zero" {
		return strings.ReplaceAll(text, "<no value>", "")
	}
	return text
}

// Reads numbers as Kubernetes does: integers stay integers.
func values(text json.RawMessage) (any, error) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var data any
	if err := decoder.Decode(&data); err != nil {
		return nil, err
	}
	return numbers(data)
}

func numbers(data any) (any, error) {
	var err error
	switch data := data.(type) {
	case json.Number:
		if whole, err := data.Int64(); err == nil {
			return whole, nil
		}
		return data.Float64()
	case []any:
		for index := range data {
			if data[index], err = numbers(data[index]); err != nil {
				return nil, err
			}
		}
	case map[string]any:
		for key := range data {
			if data[key], err = numbers(data[key]); err != nil {
				return nil, err
			}
		}
	}
	return data, nil
}

func functions(set *template.Template, missingKey string) template.FuncMap {
	all := sprig.TxtFuncMap()
	// Not the same each time.
	for _, name := range []string{"env", "expandenv", "getHostByName", "now", "uuidv4", "randAlphaNum"} {
		delete(all, name)
	}
	all["include"] = include(set)
	all["tpl"] = tpl(set, missingKey)
	all["required"] = required
	all["lookup"] = func(version, kind, namespace, name string) (map[string]any, error) {
		return map[string]any{}, nil
	}
	all["toYaml"] = func(value any) string {
		text, err := yaml.Marshal(value)
		if err != nil {
			return ""
		}
		return strings.TrimSuffix(string(text), "\n")
	}
	all["fromYaml"] = func(text string) map[string]any {
		read := map[string]any{}
		if err := yaml.Unmarshal([]byte(text), &read); err != nil {
			read["Error"] = err.Error()
		}
		return read
	}
	all["fromYamlArray"] = func(text string) []any {
		read := []any{}
		if err := yaml.Unmarshal([]byte(text), &read); err != nil {
			read = []any{err.Error()}
		}
		return read
	}
	all["toJson"] = func(value any) string {
		text, err := json.Marshal(value)
		if err != nil {
			return ""
		}
		return string(text)
	}
	all["fromJson"] = func(text string) map[string]any {
		read := map[string]any{}
		if err := json.Unmarshal([]byte(text), &read); err != nil {
			read["Error"] = err.Error()
		}
		return read
	}
	all["fromJsonArray"] = func(text string) []any {
		read := []any{}
		if err := json.Unmarshal([]byte(text), &read); err != nil {
			read = []any{err.Error()}
		}
		return read
	}
	all["toToml"] = func(value any) string {
		var out bytes.Buffer
		if err := toml.NewEncoder(&out).Encode(value); err != nil {
			return err.Error()
		}
		return out.String()
	}
	return all
}

func include(set *template.Template) any {
	depth := map[string]int{}
	return func(name string, data any) (string, error) {
		if depth[name] > 1000 {
			return "", fmt.Errorf("rendering template has a nested reference name: %s", name)
		}
		depth[name]++
		defer func() { depth[name]-- }()
		var out strings.Builder
		err := set.ExecuteTemplate(&out, name, data)
		return out.String(), err
	}
}

func tpl(parent *template.Template, missingKey string) any {
	return func(text string, data any) (string, error) {
		set, err := parent.Clone()
		if err != nil {
			return "", err
		}
		set.Option("missingkey=" + missingKey)
		set.Funcs(template.FuncMap{"include": include(set), "tpl": tpl(set, missingKey)})
		set, err = set.New(parent.Name()).Parse(text)
		if err != nil {
			return "", err
		}
		var out strings.Builder
		if err := set.Execute(&out, data); err != nil {
			return "", err
		}
		return testCase{MissingKey: missingKey}.withoutNoValue(out.String()), nil
	}
}

func required(message string, value any) (any, error) {
	if text, isText := value.(string); value == nil || isText && text == "" {
		return nil, errors.New(message)
	}
	return value, nil
}
