// Built by console/build.mjs from console/extension. Do not edit.
/*! Preact

The MIT License (MIT)

Copyright (c) 2015-present Jason Miller

Permission is hereby granted, free of charge, to any person obtaining a copy
of this software and associated documentation files (the "Software"), to deal
in the Software without restriction, including without limitation the rights
to use, copy, modify, merge, publish, distribute, sublicense, and/or sell
copies of the Software, and to permit persons to whom the Software is
furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all
copies or substantial portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE
SOFTWARE.
*/

// node_modules/preact/dist/preact.mjs
var n;
var t;
var r;
var u;
var i;
var f;
var o;
var e;
var l;
var c;
var a;
var s;
var h = /* @__PURE__ */ Symbol.for("pv");
var p = {};
var y = [];
var v = /^m(i|n|o|s|text|space)$/;
var w = Array.isArray;
var d = y.slice;
var _ = Object.assign;
function g(n2) {
  n2 && n2.parentNode && n2.remove();
}
function m(r3, u3, i3, f4, o4) {
  var e3 = { type: r3, props: u3, key: i3, ref: f4, __k: null, __: null, __b: 0, __e: null, __c: null, constructor: h, __v: o4 || ++t, __i: -1, __u: 0 };
  return !o4 && n.vnode && n.vnode(e3), e3;
}
function $(n2) {
  return n2.children;
}
function x(n2, t3) {
  this.props = n2, this.context = t3, this.__g = 0;
}
function S(n2, t3) {
  if (null == t3) return n2.__ && S(n2.__, n2.__i + 1);
  for (var r3; t3 < n2.__k.length; t3++) if ((r3 = n2.__k[t3]) && r3.__e) return r3.__e;
  return "function" != typeof n2.type || n2.props.__P ? null : S(n2);
}
function C(t3) {
  var r3, u3 = t3.__v, i3 = u3.__e, f4 = [], o4 = [], e3 = t3.__P;
  e3 && ((r3 = _({ constructor: h }, u3)).__v = u3.__v + 1, n.vnode && n.vnode(r3), z(e3, r3, u3, t3.__n, e3.namespaceURI, 32 & u3.__u ? [i3] : null, f4, i3 || S(u3), 32 & u3.__u, o4), r3.__v = u3.__v, r3.__.__k[r3.__i] = r3, E(f4, r3, o4), u3.__ = u3.__e = null, r3.__e != i3 && j(r3));
}
function j(n2) {
  if ((n2 = n2.__) && n2.__c && !n2.props.__P) return n2.__e = null, n2.__k.some(function(t3) {
    return t3 && (n2.__e = t3.__e);
  }), j(n2);
}
function L(t3) {
  (8 & t3.__g || (t3.__g |= 8, u.push(t3), f++)) && i == n.debounceRendering || ((i = n.debounceRendering) || queueMicrotask)(H);
}
function H() {
  try {
    for (var n2, t3 = 1; u.length; ) u.length > t3 && u.sort(o), n2 = u.shift(), t3 = u.length, 8 & n2.__g && C(n2);
  } finally {
    (f = u.length) && (i || queueMicrotask)(H);
  }
}
function I(n2, t3, r3, u3, i3, f4, o4, e3, l3, c3, a4) {
  var s3, h3, v3, w3, d3, _3, g3 = u3.__k || y, k2 = t3.length;
  for (l3 = q(r3, t3, g3, l3, k2), s3 = 0; s3 < k2; s3++) null != (v3 = r3.__k[s3]) && (h3 = ~v3.__i && g3[v3.__i] || p, v3.__i = s3, _3 = z(n2, v3, h3, i3, f4, o4, e3, l3, c3, a4), w3 = v3.__e, (h3.ref != v3.ref || 8 & h3.__u) && (h3.ref && G(h3.ref, null, v3, h3), v3.ref && a4.push(v3.ref, v3.__c || w3, v3)), d3 = d3 || w3, 4 & v3.__u ? (l3 = A(v3, l3, n2, !h3.__v), h3.__e && (h3.__e = null)) : "function" == typeof v3.type && void 0 !== _3 ? l3 = _3 : w3 && (l3 = w3.nextSibling), v3.__u &= -21);
  return r3.__e = d3, l3;
}
function q(n2, t3, r3, u3, i3) {
  var f4, o4, e3, l3, c3, a4, s3, p3, y3, v3 = r3.length, d3 = v3, _3 = 0, g3 = 0, k2 = n2.__k = Array(i3);
  for (f4 = 0; f4 < i3; f4++) null != (o4 = t3[f4]) && "boolean" != typeof o4 && "function" != typeof o4 ? ("object" != typeof o4 || o4.constructor === String ? o4 = k2[f4] = m(null, o4) : w(o4) ? o4 = k2[f4] = m($, { children: o4 }) : o4.constructor === h && o4.__b ? o4 = k2[f4] = m(o4.type, o4.props, o4.key, o4.ref, o4.__v) : k2[f4] = o4, l3 = f4 + _3, o4.__ = n2, o4.__b = n2.__b + 1, e3 = null, ~(c3 = o4.__i = P(o4, r3, l3, d3)) && (d3--, (e3 = r3[c3]) && (e3.__u |= 2)), e3 && e3.__v ? (o4.__u |= 16, c3 == l3 - 1 ? _3-- : c3 == l3 + 1 ? _3++ : c3 != l3 && (c3 > l3 ? _3-- : _3++, g3 = 1)) : (~c3 || (i3 > v3 ? _3-- : i3 < v3 && _3++), "function" != typeof o4.type && (o4.__u |= 4))) : k2[f4] = null;
  if (g3) {
    for (a4 = [], s3 = [], f4 = 0; f4 < i3; f4++) if ((o4 = k2[f4]) && 16 & o4.__u) {
      for (_3 = 0, p3 = a4.length; _3 < p3; ) a4[y3 = _3 + p3 >> 1] < o4.__i ? _3 = y3 + 1 : p3 = y3;
      a4[_3] = o4.__i, s3[f4] = _3 + 1;
    }
    for (_3 = a4.length; f4--; ) s3[f4] && (s3[f4] == _3 ? _3-- : k2[f4].__u |= 4);
  }
  if (d3) for (f4 = 0; f4 < v3; f4++) !(e3 = r3[f4]) || 2 & e3.__u || (e3.__e == u3 && (u3 = S(e3)), J(e3, e3));
  return u3;
}
function A(n2, t3, r3, u3) {
  var i3, f4, o4, e3;
  if ("function" == typeof n2.type) {
    if (n2.props.__P) return t3;
    if (i3 = n2.__k) for (f4 = 0; f4 < i3.length; f4++) i3[f4] && (i3[f4].__ = n2, t3 = A(i3[f4], t3, r3, false));
    return t3;
  }
  for (t3 && !t3.parentNode && (t3 = S(n2)) && !t3.parentNode && (t3 = null), o4 = n2.__e, e3 = t3; e3 && 8 == e3.nodeType; ) e3 = e3.nextSibling;
  for (o4 != e3 && (!u3 && r3.moveBefore && o4.parentNode ? r3.moveBefore(o4, t3) : r3.insertBefore(o4, t3 || null)), t3 = o4; (t3 = t3 && t3.nextSibling) && 8 == t3.nodeType && !t3.data.startsWith("$s"); ) ;
  return t3;
}
function P(n2, t3, r3, u3) {
  var i3, f4 = n2.key, o4 = n2.type, e3 = t3[r3], l3 = e3 && !(2 & e3.__u);
  if (null === e3 && null == f4 || l3 && f4 == e3.key && o4 == e3.type) return r3;
  if (u3 > (l3 ? 1 : 0)) {
    for (i3 = r3 - 1; i3 >= 0; i3--) if ((e3 = t3[i3]) && !(2 & e3.__u) && f4 == e3.key && o4 == e3.type) return i3;
    for (i3 = r3 + 1; i3 < t3.length; i3++) if ((e3 = t3[i3]) && !(2 & e3.__u) && f4 == e3.key && o4 == e3.type) return i3;
  }
  return -1;
}
function T(n2, t3, r3) {
  null == r3 && (r3 = ""), "-" == t3[0] ? n2.setProperty(t3, r3) : n2[t3] = r3;
}
function N(n2, t3, r3, u3, i3) {
  var f4, o4;
  if ("style" == t3) if ("string" == typeof r3) n2.style.cssText = r3;
  else {
    if ("string" == typeof u3 && (n2.style.cssText = u3 = ""), u3) for (t3 in u3) r3 && t3 in r3 || T(n2.style, t3);
    if (r3) for (t3 in r3) u3 && r3[t3] == u3[t3] || T(n2.style, t3, r3[t3]);
  }
  else if ("o" == t3[0] && "n" == t3[1]) "function" != typeof r3 && (r3 = null), "function" != typeof u3 && (u3 = null), (n2.__e || (n2.__e = {}))[t3] = r3, r3 && u3 || (o4 = a[t3] || (a[t3] = V(t3)), (n2.__a || (n2.__a = {}))[t3] = c, f4 = t3 != (t3 = t3.replace(l, "$1")), (t3 = t3.slice(2))[0] < "a" && (t3 = t3.toLowerCase()), r3 ? n2.addEventListener(t3, o4, f4) : n2.removeEventListener(t3, o4, f4));
  else {
    if ("http://www.w3.org/2000/svg" == i3) t3 = t3.replace(/xlink(H|:h)/, "h").replace(/sName$/, "s");
    else if ("width" != t3 && "height" != t3 && "href" != t3 && "list" != t3 && "form" != t3 && "tabIndex" != t3 && "download" != t3 && "rowSpan" != t3 && "colSpan" != t3 && "role" != t3 && "popover" != t3 && t3 in n2) try {
      return void (n2[t3] = null == r3 ? "" : r3);
    } catch (n3) {
    }
    if ("function" == typeof r3) return;
    null == r3 || false === r3 && "-" != t3[4] ? n2.removeAttribute(t3) : n2.setAttribute(t3, "popover" == t3 && 1 == r3 ? "" : r3);
  }
}
function V(t3) {
  return function(r3) {
    var u3 = this.__e;
    if (u3) {
      if (u3 = u3[t3], null == r3[e]) r3[e] = c++;
      else if (r3[e] < this.__a[t3]) return;
      return u3(n.event ? n.event(r3) : r3);
    }
  };
}
function z(t3, r3, u3, i3, f4, o4, e3, l3, c3, a4) {
  var s3, p3, v3, d3, k2, b, m3, M, C3, j2, L2, H2, q2, A3, O, P3, T3, N2, V2 = r3.type;
  if (r3.constructor !== h) return null;
  128 & u3.__u && (c3 = 32 & u3.__u, s3 = u3.__c.__z) && (r3.__u |= c3, p3 = o4 = [], 8 == s3.nodeType ? l3 = B(s3, o4) : o4.push(s3), l3 = o4[0] || l3), (s3 = n.__b) && s3(r3);
  n: if ("function" == typeof V2) {
    v3 = e3.length;
    try {
      if (M = r3.props, C3 = (s3 = V2.prototype) && s3.render, j2 = (s3 = V2.contextType) && i3[s3.__c], L2 = s3 ? j2 ? j2.props.value : s3.__ : i3, (d3 = u3.__c) ? (r3.__c = d3, 2 & d3.__g && (d3.__g |= 1)) : (C3 ? r3.__c = d3 = new V2(M, L2) : (r3.__c = d3 = new x(M, L2), d3.constructor = V2, d3.render = K), j2 && j2.sub(d3), d3.state || (d3.state = {}), d3.__n = i3, d3.__g |= 8, d3.__h = [], d3.__k = []), C3 && (d3.__s || (d3.__s = d3.state), V2.getDerivedStateFromProps && (d3.__s == d3.state && (d3.__s = _({}, d3.__s)), _(d3.__s, V2.getDerivedStateFromProps(M, d3.__s)))), k2 = d3.props, b = d3.state, d3.__v = r3, u3.__c) {
        if (M !== k2 && C3 && !V2.getDerivedStateFromProps && d3.componentWillReceiveProps && d3.componentWillReceiveProps(M, L2), r3.__v == u3.__v && !(8 & d3.__g) || !(4 & d3.__g) && d3.shouldComponentUpdate && false === d3.shouldComponentUpdate(M, d3.__s, L2)) {
          r3.__v != u3.__v && (d3.props = M, d3.state = d3.__s, d3.__g &= -9), r3.__e = u3.__e, r3.__k = u3.__k, r3.__k.some(function(n2) {
            n2 && (n2.__ = r3);
          }), y.push.apply(d3.__h, d3.__k), d3.__k = [], d3.__h.length && e3.push(d3), l3 = S(u3);
          break n;
        }
        d3.componentWillUpdate && d3.componentWillUpdate(M, d3.__s, L2), C3 && d3.componentDidUpdate && d3.__h.push(function() {
          d3.componentDidUpdate(k2, b, m3);
        });
      } else C3 && !V2.getDerivedStateFromProps && d3.componentWillMount && d3.componentWillMount(), C3 && d3.componentDidMount && d3.__h.push(d3.componentDidMount);
      d3.context = L2, d3.props = M, d3.__P = t3, d3.__g &= -5, H2 = n.__r, q2 = C3 ? 25 : 0;
      do {
        d3.__g &= -9, H2 && H2(r3), s3 = d3.render(d3.props, d3.state = d3.__s, d3.context);
      } while (8 & d3.__g && ++q2 < 25);
      C3 && (y.push.apply(d3.__h, d3.__k), d3.__k = []), d3.state = d3.__s, d3.getChildContext && (i3 = _({}, i3, d3.getChildContext())), C3 && u3.__c && d3.getSnapshotBeforeUpdate && (m3 = d3.getSnapshotBeforeUpdate(k2, b)), A3 = s3 && s3.type === $ && null == s3.key ? s3.props.children : s3, M.__P && (s3 = l3, f4 = (t3 = M.__P).namespaceURI, c3 = o4 = null, u3.props && u3.props.__P != t3 && (u3.__k.some(function(n2) {
        n2 && J(n2, n2);
      }), u3.__k = null), l3 = u3.__k ? S(u3, 0) : null), l3 = I(t3, w(A3) ? A3 : [A3], r3, u3, i3, f4, o4, e3, l3, c3, a4), M.__P && (r3.__e = null, l3 = s3), r3.__u &= -161, p3 && p3.some(g), d3.__h.length && e3.push(d3), 1 & d3.__g && (d3.__g &= -4);
    } catch (t4) {
      if (e3.length = v3, r3.__v = null, c3 || o4) if (t4 && t4.then) {
        if (r3.__u |= 128 | c3, o4) {
          for (~(T3 = o4.indexOf(l3 || void 0)) || (T3 = o4.length); (N2 = o4[T3 - 1]) && 8 == N2.nodeType; ) T3--;
          for (; T3 < o4.length; T3++) if (N2 = o4[T3]) if (o4[T3] = null, O) {
            if (N2 == P3) break;
          } else {
            if (8 != N2.nodeType) break;
            N2.data.startsWith("$s") && (P3 = B(O = N2));
          }
        }
        if (!O) {
          for (; l3 && 8 == l3.nodeType && l3.nextSibling; ) l3 = l3.nextSibling;
          O = l3;
        }
        (s3 = B(O = r3.__c.__z || (r3.__c.__z = O))) ? (r3.__e = O, l3 = s3) : r3.__e = l3, l3 = l3 && l3.nextSibling;
      } else o4 && o4.some(g);
      else r3.__e = u3.__e;
      r3.__k || (r3.__k = u3.__k || []), t4 && t4.then || D(r3), n.__e(t4, r3, u3);
    }
  } else l3 = r3.__e = F(u3.__e, r3, u3, i3, f4, o4, e3, c3, a4, t3);
  return (s3 = n.diffed) && s3(r3), l3;
}
function B(n2, t3) {
  if (n2 && 8 == n2.nodeType && n2.data.startsWith("$s")) for (var r3 = 1; n2 = n2.nextSibling; ) {
    if (8 == n2.nodeType) {
      if (n2.data.startsWith("$s")) r3++;
      else if (n2.data.startsWith("/$s") && !--r3) return n2;
    }
    t3 && t3.push(n2);
  }
}
function D(n2) {
  n2 && (n2.__c && (n2.__c.__g |= 4), n2.__k && n2.__k.some(D));
}
function E(t3, r3, u3) {
  for (var i3 = 0; i3 < u3.length; ) G(u3[i3++], u3[i3++], u3[i3++]);
  n.__c && n.__c(r3, t3), t3.some(function(r4) {
    try {
      t3 = r4.__h, r4.__h = [], t3.some(function(n2) {
        n2.call(r4);
      });
    } catch (t4) {
      n.__e(t4, r4.__v);
    }
  });
}
function F(t3, r3, u3, i3, f4, o4, e3, l3, c3, a4) {
  var s3, h3, y3, _3, k2, b, m3, M, $2 = u3.props || p, x2 = r3.props, C3 = r3.type;
  if ("svg" == C3 ? f4 = "http://www.w3.org/2000/svg" : "math" == C3 ? f4 = "http://www.w3.org/1998/Math/MathML" : f4 || (f4 = "http://www.w3.org/1999/xhtml"), o4) {
    for (s3 = 0; s3 < o4.length; s3++) if ((k2 = o4[s3]) && (C3 ? k2.localName == C3 : 3 == k2.nodeType)) {
      t3 = k2, o4[s3] = null;
      break;
    }
  }
  if (!t3) {
    if (M = a4.ownerDocument || document, !C3) return M.createTextNode(x2);
    t3 = M.createElementNS(f4, C3, x2.is ? x2 : a4), l3 && (n.__m && n.__m(r3, o4), l3 = false), o4 = null;
  }
  if (C3) {
    if (a4 = "template" == C3 && t3.content || t3, o4 = "textarea" == C3 && null != x2.defaultValue ? null : o4 && d.call(a4.childNodes), !l3 && o4) for ($2 = {}, s3 = 0; s3 < t3.attributes.length; s3++) $2[(k2 = t3.attributes[s3]).name] = k2.value;
    for (s3 in $2) k2 = $2[s3], "dangerouslySetInnerHTML" == s3 ? y3 = k2 : "children" == s3 || s3 in x2 || "value" == s3 && "defaultValue" in x2 || "checked" == s3 && "defaultChecked" in x2 || N(t3, s3, null, k2, f4);
    for (s3 in x2) k2 = x2[s3], "children" == s3 ? _3 = k2 : "dangerouslySetInnerHTML" == s3 ? h3 = k2 : "value" == s3 ? b = k2 : "checked" == s3 ? m3 = k2 : l3 && "function" != typeof k2 || $2[s3] === k2 || N(t3, s3, k2, $2[s3], f4);
    h3 ? (l3 || y3 && (h3.__html == y3.__html || h3.__html == t3.innerHTML) || (t3.innerHTML = h3.__html), r3.__k = []) : (y3 && (t3.textContent = ""), ("foreignObject" == C3 || "http://www.w3.org/1998/Math/MathML" == f4 && v.test(C3)) && (f4 = "http://www.w3.org/1999/xhtml"), I(a4, w(_3) ? _3 : [_3], r3, u3, i3, f4, o4, e3, o4 ? o4[0] : u3.__k && S(u3, 0), l3, c3), o4 && o4.some(g)), l3 && "textarea" != C3 || (s3 = "value", "progress" == C3 && null == b ? t3.removeAttribute(s3) : null == b || b === t3[s3] && ("progress" != C3 || b) || N(t3, s3, b, $2[s3], f4), s3 = "checked", null != m3 && m3 != t3[s3] && N(t3, s3, m3, $2[s3], f4));
  } else $2 === x2 || l3 && t3.data == x2 || (t3.data = x2);
  return t3;
}
function G(t3, r3, u3, i3) {
  try {
    "function" == typeof t3 ? r3 ? r3.__x = t3(r3) || 1 : i3 && (i3 = i3.__c || i3.__e) && (r3 = i3.__x) && (i3.__x = null, "function" == typeof r3 ? r3() : t3(null)) : t3.current = r3;
  } catch (t4) {
    n.__e(t4, u3);
  }
}
function J(t3, r3, u3) {
  var i3, f4, o4, e3;
  if (n.unmount && n.unmount(t3), !(i3 = t3.ref) || i3.current && i3.current != t3.__e || G(i3, null, r3, t3), i3 = t3.__c) {
    if (i3.componentWillUnmount) try {
      i3.componentWillUnmount();
    } catch (t4) {
      n.__e(t4, r3);
    }
    i3.__P = i3.__n = null;
  }
  if (i3 = t3.__k) for (e3 = 0; e3 < i3.length; e3++) i3[e3] && J(i3[e3], r3, "function" != typeof t3.type || u3 && !t3.props.__P);
  !u3 && (i3 = t3.__c) && (i3 = i3.__z) && (f4 = B(i3, o4 = [])) && (i3 == t3.__e && o4.some(g), g(f4), g(i3)), u3 || g(t3.__e), t3.__e = t3.__c = t3.__ = null;
}
function K(n2, t3, r3) {
  return this.constructor(n2, r3);
}
function Q(t3, r3) {
  var u3, i3, f4, o4;
  n.__ && n.__(t3, r3), 9 == r3.nodeType && (r3 = r3.documentElement), i3 = (u3 = t3 && 32 & t3.__u) ? null : r3.__k, r3.__k = m($, { children: [t3] }), f4 = [], o4 = [], z(r3, r3.__k, i3 || p, p, r3.namespaceURI, i3 ? null : r3.firstChild ? d.call(r3.childNodes) : null, f4, i3 ? i3.__e : r3.firstChild, u3, o4), E(f4, r3.__k, o4), r3.__k.props.children = null;
}
n = { __e: function(n2, t3, r3, u3) {
  for (var i3, o4, e3; t3 = t3.__; ) if ((i3 = t3.__c) && !(1 & i3.__g)) {
    i3.__g |= 4;
    try {
      if ((e3 = (o4 = i3.constructor) && o4.getDerivedStateFromError) && i3.setState(o4.getDerivedStateFromError(n2)), i3.componentDidCatch && (i3.componentDidCatch(n2, u3 || {}), e3 = 1), e3 && 8 & i3.__g) return void (i3.__g |= 2);
    } catch (t4) {
      n2 = t4;
    }
  }
  throw f = 0, n2;
} }, t = 0, r = function(n2) {
  return null != n2 && n2.constructor === h;
}, x.prototype.setState = function(n2, t3) {
  var r3 = this.__s;
  r3 && r3 != this.state || (r3 = this.__s = _({}, this.state)), "function" == typeof n2 && (n2 = n2(_({}, r3), this.props)), n2 && (_(r3, n2), this.__v && (t3 && this.__k.push(t3), L(this)));
}, x.prototype.forceUpdate = function(n2) {
  this.__v && (this.__g |= 4, n2 && this.__h.push(n2), L(this));
}, x.prototype.render = $, u = [], f = 0, o = function(n2, t3) {
  return n2.__v.__b - t3.__v.__b;
}, e = /* @__PURE__ */ Symbol(), l = /(PointerCapture)$|Capture$/i, c = 0, a = {}, s = 0;

// node_modules/preact/hooks/dist/hooks.mjs
var t2;
var r2;
var u2;
var i2;
var o2 = Object.is;
var f2 = 0;
var c2 = [];
var e2 = [];
var a2 = n;
var v2 = a2.__b;
var l2 = a2.__r;
var m2 = a2.diffed;
var h2 = a2.__c;
var s2 = a2.unmount;
var p2 = a2.__;
function y2(n2, t3) {
  a2.__h && a2.__h(r2, n2, f2 || t3), f2 = 0;
  var u3 = r2.__H || (r2.__H = { __: [], __h: [] });
  return n2 >= u3.__.length && u3.__.push({}), u3.__[n2];
}
function d2(n2) {
  return f2 = 1, _2(G2, n2);
}
function _2(n2, u3, i3) {
  var f4 = y2(t2++, 2);
  if (f4.t = n2, !f4.__c && (f4.__ = [i3 ? i3(u3) : G2(void 0, u3), function(n3) {
    var t3 = (f4.__N || f4.__)[0], r3 = f4.t(t3, n3);
    o2(t3, r3) || (f4.__N = [r3, f4.__[1]], f4.__c.setState({}));
  }], f4.__c = r2, !r2.__f)) {
    r2.__f = true;
    var c3 = r2.shouldComponentUpdate;
    r2.shouldComponentUpdate = function(n3, t3, r3) {
      var u4 = this.__H;
      if (!u4) return true;
      var i4 = false, f5 = this.props != n3;
      if (u4.__.some(function(n4) {
        n4.__N && (i4 = true, o2(n4.__[0], n4.__N[0]) || (f5 = true));
      }), c3) {
        var e3 = c3.call(this, n3, t3, r3);
        return i4 ? e3 || f5 : e3;
      }
      return !i4 || f5;
    };
  }
  return f4.__;
}
function A2(n2, u3) {
  var i3 = y2(t2++, 3);
  !a2.__s && E2(i3.__H, u3) && (i3.__P = true, i3.__ = n2, i3.u = u3, r2.__H.__h.push(i3));
}
function F2(n2, u3) {
  var i3 = y2(t2++, 4);
  !a2.__s && E2(i3.__H, u3) && (i3.__P = false, i3.__ = n2, i3.u = u3, r2.__h.push(i3));
}
function T2(n2) {
  return f2 = 5, w2(function() {
    return { current: n2 };
  }, []);
}
function w2(n2, r3) {
  var u3 = y2(t2++, 7);
  return E2(u3.__H, r3) && (u3.__ = n2(), u3.__H = r3), u3.__;
}
function P2() {
  var n2 = y2(t2++, 11);
  if (!n2.__) {
    for (var u3 = r2.__v; !u3.__m && u3.__; ) u3 = u3.__;
    var i3 = u3.__m || (u3.__m = [0, 0]);
    n2.__ = "P" + i3[0] + "-" + i3[1]++;
  }
  return n2.__;
}
function g2() {
  var n2;
  do {
    for (; n2 = e2.shift(); ) try {
      C2(n2);
    } catch (t4) {
      a2.__e(t4, { __: (n2 = n2.__P) && n2.__v });
    }
    for (; n2 = c2.shift(); ) {
      var t3 = n2.__H;
      if (n2.__P && t3) try {
        t3.__h.some(C2), t3.__h.some(D2), t3.__h = [];
      } catch (r3) {
        t3.__h = [], a2.__e(r3, n2.__v);
      }
    }
  } while (e2.length);
}
a2.__b = function(n2) {
  r2 = null, v2 && v2(n2);
}, a2.__ = function(n2, t3) {
  n2 && t3.__k && t3.__k.__m && (n2.__m = t3.__k.__m), p2 && p2(n2, t3);
}, a2.__r = function(n2) {
  l2 && l2(n2), t2 = 0;
  var i3 = (r2 = n2.__c).__H;
  i3 && (u2 == r2 ? r2.__h = [] : (i3.__h.some(C2), i3.__h.some(D2), t2 = 0), i3.__h = [], i3.__.some(function(n3) {
    n3.__N && (n3.__ = n3.__N), n3.u = n3.__N = void 0;
  })), u2 = r2;
}, a2.diffed = function(n2) {
  m2 && m2(n2);
  var t3 = n2.__c;
  t3 && t3.__H && (t3.__H.__h.length && B2(c2.push(t3)), t3.__H.__.some(function(n3) {
    n3.u && (n3.__H = n3.u);
  })), u2 = r2 = null;
}, a2.__c = function(n2, t3) {
  t3.some(function(n3) {
    try {
      n3.__h.some(C2), n3.__h = n3.__h.filter(function(n4) {
        return !n4.__ || D2(n4);
      });
    } catch (t4) {
      n3.__h = [function() {
        throw t4;
      }];
    }
  }), h2 && h2(n2, t3);
}, a2.unmount = function(n2) {
  s2 && s2(n2);
  var t3, r3, u3 = n2.__c;
  u3 && u3.__H && (u3.__H.__.some(function(u4) {
    try {
      if (u4.__P && u4.__c) {
        if (void 0 === r3) {
          for (r3 = n2.__; r3 && (!r3.__c || !r3.__c.__P); ) r3 = r3.__;
          r3 = r3 && r3.__c;
        }
        u4.__P = r3, B2(e2.push(u4));
      } else C2(u4);
    } catch (n3) {
      t3 = n3;
    }
  }), u3.__H = void 0, t3 && a2.__e(t3, u3.__v));
};
var k = "function" == typeof requestAnimationFrame;
function z2(n2) {
  var t3, r3 = function() {
    clearTimeout(u3), k && cancelAnimationFrame(t3), setTimeout(n2);
  }, u3 = setTimeout(r3, 35);
  k && (t3 = requestAnimationFrame(r3));
}
function B2(n2) {
  1 != n2 && i2 == a2.requestAnimationFrame || ((i2 = a2.requestAnimationFrame) || z2)(g2);
}
function C2(n2) {
  var t3 = r2, u3 = n2.__c;
  "function" == typeof u3 && (n2.__c = void 0, u3()), r2 = t3;
}
function D2(n2) {
  var t3 = r2;
  n2.__c = n2.__(), r2 = t3;
}
function E2(n2, t3) {
  return !n2 || n2.length != t3.length || t3.some(function(t4, r3) {
    return !o2(t4, n2[r3]);
  });
}
function G2(n2, t3) {
  return "function" == typeof t3 ? t3(n2) : t3;
}

// extension/yaml.ts
var Mistake = class extends Error {
  constructor(line, message) {
    super(`line ${line}: ${message}`);
    this.line = line;
  }
  line;
};
var NUMBER = /^[-+]?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?$/;
var SPECIAL = /^(~|null|true|false|yes|no|on|off|y|n|\.nan|[-+]?\.inf|[-+]?\.[0-9].*|[-+]?[0-9][0-9_]*([.:xob][0-9a-f_.:]*)?(e[-+]?[0-9]+)?|[0-9]{4}-[0-9]{2}-[0-9]{2}.*)$/i;
var PLAIN = /^[A-Za-z0-9_./$][A-Za-z0-9_./$@%+~()=:;,<>^*!?&|'"\\ -]*$/;
function word(text) {
  const plain = PLAIN.test(text) && !SPECIAL.test(text) && !/: |:$| #|^---|\s$/.test(text);
  return plain ? text : JSON.stringify(text);
}
function write(value, indent = "") {
  if (Array.isArray(value)) {
    if (value.length === 0) return "[]\n";
    return value.map((item) => {
      const inner = write(item, `${indent}  `);
      return isCollection(item) ? `${indent}- ${inner.slice(indent.length + 2)}` : `${indent}- ${inner}`;
    }).join("");
  }
  if (typeof value === "object" && value !== null) {
    const entries = Object.entries(value);
    if (entries.length === 0) return "{}\n";
    return entries.map(([key, item]) => `${indent}${word(key)}:${isCollection(item) ? "\n" : " "}${write(item, isCollection(item) ? `${indent}  ` : indent)}`).join("");
  }
  if (typeof value !== "string") return `${JSON.stringify(value)}
`;
  if (/\n/.test(value) && !/[ \t](\n|$)|\t|\r|[^\n\x20-\x7e\u00a0-\ud7ff\ue000-\ufffd]/.test(value) && /^[^ \n]/.test(value)) {
    const keep = value.endsWith("\n\n") ? "+" : value.endsWith("\n") ? "" : "-";
    const lines = value.replace(/\n$/, "").split("\n").map((line) => line ? `${indent}  ${line}` : "");
    return `|${keep}
${lines.join("\n")}
`;
  }
  return `${word(value)}
`;
}
function isCollection(value) {
  return typeof value === "object" && value !== null && (Array.isArray(value) ? value.length : Object.keys(value).length) > 0;
}
function read(text) {
  const raw = text.replace(/\n$/, "").split("\n");
  const lines = [];
  raw.forEach((line, at2) => {
    const content = line.trimStart();
    if (content === "" || content.startsWith("#")) return;
    if (/^\s*\t/.test(line)) throw new Mistake(at2 + 1, "a tab stands where only blanks may");
    lines.push({ number: at2 + 1, indent: line.length - content.length, text: content.trimEnd() });
  });
  if (lines[0]?.text === "---") lines.shift();
  const first = lines[0];
  if (!first) return null;
  const reader = new Reader(lines, raw);
  const value = reader.node(first.indent);
  const left = reader.peek();
  if (left) throw new Mistake(left.number, left.text.startsWith("---") ? "only one document is read" : "this is not part of what stands above it");
  return value;
}
var Reader = class {
  constructor(lines, raw) {
    this.lines = lines;
    this.raw = raw;
  }
  lines;
  raw;
  at = 0;
  peek() {
    return this.lines[this.at];
  }
  /** What begins at the next line, whose indentation is this. */
  node(indent) {
    const line = this.lines[this.at];
    if (isItem(line.text)) return this.sequence(indent);
    if (keyOf(line) !== null) return this.mapping(indent);
    this.at += 1;
    return this.inline(line.text, line, indent - 1);
  }
  sequence(indent) {
    const items = [];
    for (let line = this.peek(); line && line.indent === indent && isItem(line.text); line = this.peek()) {
      const rest = line.text.slice(1).trimStart();
      if (rest === "" || rest.startsWith("#")) {
        this.at += 1;
        items.push(this.below(indent));
        continue;
      }
      const inner = { number: line.number, indent: indent + line.text.length - rest.length, text: rest };
      if (isItem(rest) || keyOf(inner) !== null) {
        this.lines[this.at] = inner;
        items.push(this.node(inner.indent));
      } else {
        this.at += 1;
        items.push(this.inline(rest, line, indent));
      }
    }
    return items;
  }
  mapping(indent) {
    const map = {};
    for (let line = this.peek(); line && line.indent === indent; line = this.peek()) {
      const found = keyOf(line);
      if (found === null) throw new Mistake(line.number, "this is neither a key nor part of what stands above it");
      const { key, rest } = found;
      if (Object.hasOwn(map, key)) throw new Mistake(line.number, `${key} is there twice`);
      this.at += 1;
      Object.defineProperty(map, key, { value: rest === "" || rest.startsWith("#") ? this.below(indent, true) : this.inline(rest, line, indent), enumerable: true, writable: true, configurable: true });
    }
    const next = this.peek();
    if (next && next.indent > indent) throw new Mistake(next.number, "this is indented too far");
    return map;
  }
  /** What stands under a key or a dash; a list may stand right below its key. */
  below(indent, ofKey = false) {
    const next = this.peek();
    if (!next || next.indent < indent || next.indent === indent && !(ofKey && isItem(next.text))) return null;
    return this.node(next.indent);
  }
  /** A value that begins on the line of its key or dash. */
  inline(text, line, indent) {
    if (/^[|>]/.test(text)) return this.block(text, line, indent);
    if (/^[&*!%@`]/.test(text)) throw new Mistake(line.number, `${text[0]} is not understood here; put the word into quotes`);
    let whole = text;
    while (!closed(whole)) {
      const next2 = this.peek();
      if (!next2) throw new Mistake(line.number, "this is not closed");
      this.at += 1;
      whole += ` ${next2.text}`;
    }
    const flow = new Flow(whole, line.number);
    const value = flow.value("");
    flow.end();
    const next = this.peek();
    if (next && next.indent > indent && /^[A-Za-z0-9]/.test(text)) throw new Mistake(next.number, "words that go on below are not understood; use | or quotes");
    return value;
  }
  block(text, line, indent) {
    const head = /^([|>])([-+]?)\s*(#.*)?$/.exec(text);
    if (!head) throw new Mistake(line.number, "this head of a text is not understood");
    const content = [];
    let deep = -1;
    let number = line.number;
    for (; number < this.raw.length; number += 1) {
      const one = this.raw[number];
      const blanks = one.length - one.trimStart().length;
      if (one.trim() !== "") {
        if (deep < 0) deep = blanks;
        if (blanks < deep || deep <= indent) break;
      }
      content.push(deep < 0 ? "" : one.slice(deep));
    }
    while (this.peek() && this.peek().number <= number) this.at += 1;
    const kept = content.length;
    while (content.length > 0 && content.at(-1) === "") content.pop();
    const trailing = "\n".repeat(kept - content.length);
    const body = head[1] === "|" ? content.join("\n") : content.join("\n").replace(/([^\n])\n(?=[^\n ])/g, "$1 ").replace(/\n\n/g, "\n");
    if (head[2] === "-") return body;
    return head[2] === "+" ? `${body}
${trailing}` : body ? `${body}
` : "";
  }
};
var isItem = (text) => text === "-" || text.startsWith("- ");
function keyOf(line) {
  const quoted = /^("(?:[^"\\]|\\.)*"|'(?:[^']|'')*')\s*:(?:\s+|$)(.*)$/.exec(line.text);
  if (quoted) return { key: unquote(quoted[1], line.number), rest: quoted[2] };
  const plain = /^([^\s"'[{|>&*!%@`#,?-][^#]*?|-[^\s#][^#]*?)\s*:(?:\s+(.*)|)$/.exec(line.text);
  if (!plain) return null;
  if (plain[1].includes(": ")) return null;
  return { key: plain[1], rest: plain[2] ?? "" };
}
function unquote(text, line) {
  if (text.startsWith("'")) return text.slice(1, -1).replaceAll("''", "'");
  try {
    return JSON.parse(text.replace(/\\(?:x([0-9a-fA-F]{2})|(.))/g, (whole, byte) => byte ? `\\u00${byte}` : whole));
  } catch {
    throw new Mistake(line, `${text.slice(0, 40)} has signs that are not understood in quotes`);
  }
}
function closed(text) {
  if (!/^[[{"']/.test(text)) return true;
  let depth = 0;
  for (let at2 = 0; at2 < text.length; at2 += 1) {
    const sign = text[at2];
    if (sign === '"' || sign === "'") {
      const end = endOfQuotes(text, at2);
      if (end < 0) return false;
      at2 = end;
    } else if (sign === "[" || sign === "{") depth += 1;
    else if (sign === "]" || sign === "}") depth -= 1;
    if (depth === 0) return true;
  }
  return depth === 0;
}
function endOfQuotes(text, at2) {
  const sign = text[at2];
  for (let end = at2 + 1; end < text.length; end += 1) {
    if (sign === '"' && text[end] === "\\") end += 1;
    else if (text[end] === sign) {
      if (sign === "'" && text[end + 1] === "'") end += 1;
      else return end;
    }
  }
  return -1;
}
var Flow = class {
  constructor(text, line) {
    this.text = text;
    this.line = line;
  }
  text;
  line;
  at = 0;
  blanks() {
    while (/\s/.test(this.text[this.at] ?? "")) this.at += 1;
  }
  /** A value that ends at one of these signs, or with the text. */
  value(ends) {
    this.blanks();
    const sign = this.text[this.at];
    if (sign === "[") return this.items();
    if (sign === "{") return this.entries();
    if (sign === '"' || sign === "'") return this.quoted();
    let end = this.at;
    while (end < this.text.length && !ends.includes(this.text[end]) && !(this.text[end] === "#" && /\s/.test(this.text[end - 1] ?? " "))) end += 1;
    const word2 = this.text.slice(this.at, end).trim();
    this.at = end;
    if (ends === "" && /: |:$/.test(word2)) throw new Mistake(this.line, "a colon stands here; put the words into quotes");
    return scalar(word2);
  }
  end() {
    this.blanks();
    if (this.at < this.text.length && this.text[this.at] !== "#") throw new Mistake(this.line, `${this.text.slice(this.at, this.at + 40)} is too much here`);
  }
  quoted() {
    const end = endOfQuotes(this.text, this.at);
    const text = unquote(this.text.slice(this.at, end + 1), this.line);
    this.at = end + 1;
    return text;
  }
  items() {
    const items = [];
    this.at += 1;
    for (; ; ) {
      this.blanks();
      if (this.text[this.at] === "]") break;
      items.push(this.value(",]"));
      this.blanks();
      if (this.text[this.at] === ",") this.at += 1;
      else if (this.text[this.at] !== "]") throw new Mistake(this.line, "a comma or ] is missing");
    }
    this.at += 1;
    return items;
  }
  entries() {
    const map = {};
    this.at += 1;
    for (; ; ) {
      this.blanks();
      if (this.text[this.at] === "}") break;
      const key = this.text[this.at] === '"' || this.text[this.at] === "'" ? this.quoted() : this.key();
      this.blanks();
      if (this.text[this.at] !== ":") throw new Mistake(this.line, "a colon is missing");
      this.at += 1;
      if (Object.hasOwn(map, key)) throw new Mistake(this.line, `${key} is there twice`);
      Object.defineProperty(map, key, { value: this.value(",}"), enumerable: true, writable: true, configurable: true });
      this.blanks();
      if (this.text[this.at] === ",") this.at += 1;
      else if (this.text[this.at] !== "}") throw new Mistake(this.line, "a comma or } is missing");
    }
    this.at += 1;
    return map;
  }
  key() {
    const found = /^[^\s:,[\]{}#"'][^:,[\]{}#"']*/.exec(this.text.slice(this.at));
    if (!found) throw new Mistake(this.line, "a key is missing");
    this.at += found[0].length;
    return found[0].trim();
  }
};
function scalar(word2) {
  if (word2 === "" || word2 === "~" || /^(null|Null|NULL)$/.test(word2)) return null;
  if (/^(true|True|TRUE)$/.test(word2)) return true;
  if (/^(false|False|FALSE)$/.test(word2)) return false;
  if (NUMBER.test(word2)) return Number(word2);
  return word2;
}

// extension/values.ts
function parts(path) {
  return [...path.matchAll(/\[\s*"([^"]*)"\s*\]|\[\s*'([^']*)'\s*\]|\[\s*(\d+)\s*\]|([^.[\]]+)/g)].map(([, a4, b, c3, d3]) => a4 ?? b ?? c3 ?? d3 ?? "");
}
function at(value, path) {
  let found = value;
  for (const part of parts(path)) {
    if (typeof found !== "object" || found === null || !Object.hasOwn(found, part)) return void 0;
    found = found[part];
  }
  return found;
}
function said(value) {
  if (value === void 0 || value === null) return "";
  if (Array.isArray(value)) return value.map(said).join(", ");
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}
function timeOf(value, format, locale) {
  const time = new Date(String(value));
  if (Number.isNaN(time.getTime())) return said(value);
  if (format === "utc") return time.toISOString().replace(/\.\d+Z$/, "Z").replace("T", " ");
  return time.toLocaleString(locale);
}
function filled(pattern, value, object, encode = (text) => text) {
  return pattern.replace(/\{([^{}]+)\}/g, (_3, name) => encode(said(name === "value" ? value : at(object, name))));
}
function safeLink(address) {
  try {
    const url = new URL(address);
    return url.protocol === "https:" || url.protocol === "http:" ? url.href : null;
  } catch {
    return null;
  }
}
function sortKey(column, object) {
  const value = at(object, column.render.path);
  if (column.render.type === "time") return Date.parse(String(value)) || 0;
  return typeof value === "number" ? value : said(value).toLowerCase();
}

// node_modules/preact/jsx-runtime/dist/jsxRuntime.mjs
var f3 = /* @__PURE__ */ Symbol.for("pv");
var o3 = 0;
function a3(t3, e3, n2, u3, a4, i3) {
  e3 || (e3 = {});
  var c3, l3, p3 = e3;
  if ("ref" in p3 && "function" != typeof t3) for (l3 in p3 = {}, e3) "ref" == l3 ? c3 = e3[l3] : p3[l3] = e3[l3];
  var s3 = { type: t3, props: p3, key: n2, ref: c3, __k: null, __: null, __b: 0, __e: null, __c: null, constructor: f3, __v: --o3, __i: -1, __u: 0 };
  return (a4 || i3) && (s3.__source = a4, s3.__self = i3), n.vnode && n.vnode(s3), s3;
}

// extension/detail.tsx
function tidy(object) {
  const { managedFields: _unread, ...metadata } = object.metadata;
  return { ...object, metadata };
}
function Detail(context) {
  const { host, page, name, namespace, props: { resource, columns } } = context;
  const { things, known, problem } = useThings(host, namespace ?? "");
  const [asked, setAsked] = d2(false);
  const object = [...things.values()].find((one) => one.metadata.name === name && one.metadata.namespace === namespace);
  const back = /* @__PURE__ */ a3("button", { type: "button", class: "link", onClick: () => void host.navigate(""), children: [
    "All ",
    resource.plural
  ] });
  if (!object) {
    return /* @__PURE__ */ a3("section", { class: "card", children: [
      /* @__PURE__ */ a3("div", { class: "bar", children: back }),
      /* @__PURE__ */ a3("p", { class: problem ? "bad message" : "empty", role: problem ? "alert" : void 0, children: problem || (known ? `There is no ${resource.kind} ${name}, or it is gone.` : "Reading…") })
    ] });
  }
  const remove = async () => {
    setAsked(false);
    try {
      await host.remove(name, namespace);
      await host.notify(`${resource.kind} ${name} is deleted.`);
      await host.navigate("");
    } catch (error) {
      await host.notify(messageOf(error), "error");
    }
  };
  const found = at(object, "status.conditions");
  const conditions = Array.isArray(found) ? found : [];
  return /* @__PURE__ */ a3($, { children: [
    /* @__PURE__ */ a3("section", { class: "card", children: [
      /* @__PURE__ */ a3("div", { class: "bar", children: [
        back,
        " ",
        /* @__PURE__ */ a3("span", { "aria-hidden": "true", class: "dim", children: "/" }),
        " ",
        /* @__PURE__ */ a3("h2", { children: name }),
        namespace && /* @__PURE__ */ a3("span", { class: "dim", children: [
          "in ",
          namespace
        ] }),
        /* @__PURE__ */ a3("span", { class: "space" }),
        /* @__PURE__ */ a3("button", { type: "button", class: "button", onClick: () => void host.navigate(placeOf("edit", object)), children: "Edit" }),
        /* @__PURE__ */ a3("button", { type: "button", class: "button danger", onClick: () => setAsked(true), children: "Delete" })
      ] }),
      /* @__PURE__ */ a3("dl", { children: columns.map((column) => /* @__PURE__ */ a3("div", { children: [
        /* @__PURE__ */ a3("dt", { children: column.title }),
        /* @__PURE__ */ a3("dd", { children: /* @__PURE__ */ a3(Cell, { column, object, page }) })
      ] }, column.key)) })
    ] }),
    conditions.length > 0 && /* @__PURE__ */ a3("section", { class: "card", children: [
      /* @__PURE__ */ a3("div", { class: "bar", children: /* @__PURE__ */ a3("h2", { children: "Conditions" }) }),
      /* @__PURE__ */ a3("ul", { class: "conditions", children: conditions.map((one) => /* @__PURE__ */ a3("li", { children: [
        /* @__PURE__ */ a3("b", { class: one.status === "True" ? "good" : "busy", children: one.type }),
        " ",
        one.status,
        " ",
        /* @__PURE__ */ a3("span", { class: "dim", children: one.reason }),
        one.message && /* @__PURE__ */ a3("p", { children: one.message })
      ] }, one.type)) })
    ] }),
    /* @__PURE__ */ a3("section", { class: "card", children: [
      /* @__PURE__ */ a3("div", { class: "bar", children: /* @__PURE__ */ a3("h2", { children: "YAML" }) }),
      /* @__PURE__ */ a3("pre", { tabIndex: 0, role: "region", "aria-label": "YAML", children: write(tidy(object)) })
    ] }),
    /* @__PURE__ */ a3(Confirm, { object: asked ? object : null, kind: resource.kind, onYes: () => void remove(), onNo: () => setAsked(false) })
  ] });
}

// extension/form.tsx
var DEEPEST = 4;
var MOST_FIELDS = 40;
var isMap = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
function showable(schema, depth) {
  if (schema["x-kubernetes-int-or-string"]) return true;
  switch (schema.type) {
    case "string":
    case "integer":
    case "number":
    case "boolean":
      return true;
    case "array":
      return schema.items !== void 0 && (schema.items.type === "string" || depth < DEEPEST && schema.items.type === "object" && showable(schema.items, depth + 1));
    case "object": {
      if (schema["x-kubernetes-preserve-unknown-fields"] && !schema.properties) return false;
      if (!schema.properties) return isMap(schema.additionalProperties) && schema.additionalProperties.type === "string";
      return depth < DEEPEST && Object.keys(schema.properties).length <= MOST_FIELDS;
    }
  }
  return false;
}
function titleOf(name) {
  if (/^(api|cpu|dns|id|ip|ttl|tls|uid|uri|url)$/i.test(name)) return name.toUpperCase();
  const words = name.replace(/([a-z0-9])([A-Z])/g, "$1 $2").replace(/[_-]+/g, " ");
  return words.charAt(0).toUpperCase() + words.slice(1).replace(/\b[A-Z][a-z]/g, (word2) => word2.toLowerCase());
}
function Field(props) {
  const { schema } = props;
  if (!showable(schema, props.depth)) return /* @__PURE__ */ a3(YamlField, { ...props });
  if (schema.type === "object" && schema.properties) return /* @__PURE__ */ a3(Group, { ...props });
  if (schema.type === "array" && schema.items?.type === "object") return /* @__PURE__ */ a3(Items, { ...props });
  if (schema.type === "boolean") return /* @__PURE__ */ a3(Check, { ...props });
  return /* @__PURE__ */ a3(Simple, { ...props });
}
function mine(props) {
  return props.wrong.filter((one) => one.field === props.path || one.field.startsWith(`${props.path}[`)).map((one) => one.message);
}
function about(props, id) {
  const messages = mine(props);
  return {
    described: `${id}-about`,
    invalid: messages.length > 0,
    label: /* @__PURE__ */ a3("label", { for: id, children: [
      titleOf(props.name),
      props.required && /* @__PURE__ */ a3("span", { class: "needed", title: "required", children: " *" })
    ] }),
    below: /* @__PURE__ */ a3("div", { id: `${id}-about`, children: [
      props.schema.description && /* @__PURE__ */ a3("small", { children: firstSentence(props.schema.description) }),
      messages.map((message) => /* @__PURE__ */ a3("small", { class: "bad", children: message }))
    ] })
  };
}
function firstSentence(text) {
  const end = text.search(/[.:](\s|$)/);
  return end > 0 ? text.slice(0, end + 1).replace(/:$/, ".") : text;
}
function Simple(props) {
  const id = P2();
  const { schema, value, onChange } = props;
  const { described, invalid, label, below } = about(props, id);
  const common = { id, "aria-describedby": described, "aria-invalid": invalid, "aria-required": props.required };
  const preset = schema.default === void 0 ? "" : typeof schema.default === "object" ? JSON.stringify(schema.default) : String(schema.default);
  const control = () => {
    if (schema.enum) {
      return /* @__PURE__ */ a3("select", { ...common, value: String(value ?? ""), onChange: (event) => onChange(event.currentTarget.value || void 0), children: [
        (!props.required || value === void 0) && /* @__PURE__ */ a3("option", { value: "", children: preset ? `as usual (${preset})` : "not set" }),
        schema.enum.map((one) => /* @__PURE__ */ a3("option", { value: String(one), children: String(one) }))
      ] });
    }
    if (schema.type === "array" || schema.type === "object") return /* @__PURE__ */ a3(Lines, { ...props, common });
    if (schema.type === "integer" || schema.type === "number") {
      return /* @__PURE__ */ a3(
        "input",
        {
          ...common,
          type: "number",
          step: schema.type === "integer" ? 1 : "any",
          min: schema.minimum,
          max: schema.maximum,
          placeholder: preset,
          value: value === void 0 ? "" : String(value),
          onInput: (event) => onChange(event.currentTarget.value === "" ? void 0 : Number(event.currentTarget.value))
        }
      );
    }
    const take = (text) => onChange(text === "" ? void 0 : schema["x-kubernetes-int-or-string"] && /^\d+$/.test(text) ? Number(text) : text);
    const long = typeof value === "string" && value.includes("\n");
    return long ? /* @__PURE__ */ a3("textarea", { ...common, rows: 5, value: String(value), onInput: (event) => take(event.currentTarget.value) }) : /* @__PURE__ */ a3("input", { ...common, type: "text", placeholder: preset, value: value === void 0 ? "" : String(value), onInput: (event) => take(event.currentTarget.value) });
  };
  return /* @__PURE__ */ a3("div", { class: "field", children: [
    label,
    control(),
    below
  ] });
}
function Lines(props) {
  const { schema, value, onChange } = props;
  const map = schema.type === "object";
  const shown = map ? Object.entries(isMap(value) ? value : {}).map(([key, one]) => `${key}: ${String(one)}`) : Array.isArray(value) ? value.map(String) : [];
  const [text, setText] = d2(shown.join("\n"));
  const take = (next) => {
    setText(next);
    const lines = next.split("\n").map((line) => line.trim()).filter(Boolean);
    if (lines.length === 0) return onChange(void 0);
    if (!map) return onChange(lines);
    onChange(Object.fromEntries(lines.map((line) => {
      const colon = line.indexOf(":");
      return colon < 0 ? [line, ""] : [line.slice(0, colon).trim(), line.slice(colon + 1).trim()];
    })));
  };
  return /* @__PURE__ */ a3("textarea", { ...props.common, rows: Math.min(6, Math.max(2, text.split("\n").length)), placeholder: map ? "key: value, one on each line" : "one on each line", value: text, onInput: (event) => take(event.currentTarget.value) });
}
function Check(props) {
  const id = P2();
  const { described, invalid, label, below } = about(props, id);
  const preset = props.schema.default === true;
  return /* @__PURE__ */ a3("div", { class: "field check", children: [
    /* @__PURE__ */ a3("input", { id, type: "checkbox", "aria-describedby": described, "aria-invalid": invalid, checked: props.value === void 0 ? preset : props.value === true, onChange: (event) => props.onChange(event.currentTarget.checked) }),
    label,
    below
  ] });
}
function Fields(props) {
  const { schema, value } = props;
  const known = Object.entries(schema.properties ?? {});
  const needed = new Set(schema.required ?? []);
  const ordered = [...known].sort(([a4], [b]) => Number(needed.has(b)) - Number(needed.has(a4)));
  const change = (name, next) => {
    const map = { ...isMap(value) ? value : {} };
    if (next === void 0) delete map[name];
    else map[name] = next;
    props.onChange(map);
  };
  return /* @__PURE__ */ a3($, { children: ordered.map(([name, inner]) => /* @__PURE__ */ a3(
    Field,
    {
      schema: inner,
      name,
      path: props.path ? `${props.path}.${name}` : name,
      value: isMap(value) ? value[name] : void 0,
      required: needed.has(name),
      depth: props.depth,
      wrong: props.wrong,
      onChange: (next) => change(name, next)
    },
    name
  )) });
}
function Group(props) {
  const { value, onChange } = props;
  const flawed = props.wrong.some((one) => one.field.startsWith(props.path));
  const [open] = d2(props.required || isMap(value) && Object.keys(value).length > 0);
  const take = (next) => onChange(isMap(next) && Object.keys(next).length === 0 && !props.required ? void 0 : next);
  return /* @__PURE__ */ a3("details", { class: "group", open: open || flawed, children: [
    /* @__PURE__ */ a3("summary", { children: [
      titleOf(props.name),
      props.required && /* @__PURE__ */ a3("span", { class: "needed", children: " *" })
    ] }),
    props.schema.description && /* @__PURE__ */ a3("small", { children: firstSentence(props.schema.description) }),
    mine(props).map((message) => /* @__PURE__ */ a3("small", { class: "bad", children: message })),
    /* @__PURE__ */ a3(Fields, { ...props, depth: props.depth + 1, onChange: take })
  ] });
}
function Items(props) {
  const list = Array.isArray(props.value) ? props.value : [];
  const inner = props.schema.items ?? {};
  const change = (next) => props.onChange(next.length === 0 ? void 0 : next);
  const title = titleOf(props.name);
  return /* @__PURE__ */ a3("fieldset", { class: "items", children: [
    /* @__PURE__ */ a3("legend", { children: [
      title,
      props.required && /* @__PURE__ */ a3("span", { class: "needed", children: " *" })
    ] }),
    props.schema.description && /* @__PURE__ */ a3("small", { children: firstSentence(props.schema.description) }),
    list.map((item, n2) => /* @__PURE__ */ a3("div", { class: "item", role: "group", "aria-label": `${title} ${n2 + 1}`, children: [
      /* @__PURE__ */ a3(Fields, { schema: inner, path: `${props.path}[${n2}]`, value: item, depth: props.depth + 1, wrong: props.wrong, onChange: (next) => change(list.map((one, at2) => at2 === n2 ? next : one)) }),
      /* @__PURE__ */ a3("button", { type: "button", class: "button", "aria-label": `Remove ${title} ${n2 + 1}`, onClick: () => change(list.filter((_3, at2) => at2 !== n2)), children: "Remove" })
    ] }, n2)),
    /* @__PURE__ */ a3("button", { type: "button", class: "button", onClick: () => change([...list, {}]), children: "Add" })
  ] });
}
function YamlField(props) {
  const id = P2();
  const [text, setText] = d2(() => props.value === void 0 ? "" : write(props.value));
  const [mistake, setMistake] = d2("");
  const { described, invalid, label, below } = about(props, id);
  const take = (next) => {
    setText(next);
    try {
      const value = read(next);
      setMistake("");
      props.onChange(value === null ? void 0 : value);
    } catch (error) {
      setMistake(error instanceof Error ? error.message : String(error));
    }
  };
  return /* @__PURE__ */ a3("div", { class: "field", children: [
    label,
    /* @__PURE__ */ a3("textarea", { id, class: "code", spellcheck: false, "aria-describedby": described, "aria-invalid": invalid || mistake !== "", "data-mistake": mistake ? "" : void 0, rows: Math.min(16, Math.max(3, text.split("\n").length)), value: text, onInput: (event) => take(event.currentTarget.value) }),
    mistake && /* @__PURE__ */ a3("small", { class: "bad", role: "alert", children: mistake }),
    below
  ] });
}

// extension/edit.tsx
var COMMON = /* @__PURE__ */ new Set(["apiVersion", "kind", "metadata", "status"]);
function ownPart(schema) {
  if (!schema?.properties) return null;
  const properties = Object.fromEntries(Object.entries(schema.properties).filter(([name]) => !COMMON.has(name)));
  return Object.keys(properties).length > 0 ? { ...schema, properties, required: (schema.required ?? []).filter((name) => !COMMON.has(name)) } : null;
}
function Own(props) {
  const { draft, schema } = props;
  const { spec, ...others } = schema.properties ?? {};
  const common = { depth: 0, wrong: props.wrong };
  if (!spec?.properties) return /* @__PURE__ */ a3(Fields, { ...common, schema, path: "", value: draft, onChange: (next) => props.onChange(next) });
  return /* @__PURE__ */ a3($, { children: [
    /* @__PURE__ */ a3(Fields, { ...common, schema: spec, path: "spec", value: draft.spec, onChange: (next) => props.onChange({ ...draft, spec: next }) }),
    /* @__PURE__ */ a3(Fields, { ...common, schema: { ...schema, properties: others }, path: "", value: draft, onChange: (next) => props.onChange(next) })
  ] });
}
function Edit(context) {
  const { host, name, props: { resource } } = context;
  const namespaced = resource.scope === "Namespaced";
  const [schema, setSchema] = d2(void 0);
  const [namespaces, setNamespaces] = d2([]);
  const [draft, setDraft] = d2(null);
  const [asYaml, setAsYaml] = d2(false);
  const [text, setText] = d2("");
  const [problem, setProblem] = d2("");
  const [wrong, setWrong] = d2([]);
  const [saving, setSaving] = d2(false);
  const form = T2(null);
  const summary = T2(null);
  const apiVersion = resource.group ? `${resource.group}/${resource.version}` : resource.version;
  A2(() => {
    host.schema().then((found) => setSchema(ownPart(found)), () => setSchema(null));
    const empty = { apiVersion, kind: resource.kind, metadata: { name: "" }, spec: {} };
    if (name) host.get(name, context.namespace).then(setDraft, (error) => setProblem(messageOf(error)));
    else if (namespaced) {
      host.namespaces().then((found) => {
        setNamespaces(found);
        setDraft({ ...empty, metadata: { name: "", namespace: found.includes("default") ? "default" : found[0] ?? "default" } });
      }, () => setDraft({ ...empty, metadata: { name: "", namespace: "default" } }));
    } else setDraft(empty);
  }, []);
  A2(() => {
    if (problem) summary.current?.focus();
  }, [problem]);
  const yamlOnly = schema === null;
  const yaml = asYaml || yamlOnly;
  F2(() => {
    if (yaml && draft) setText(write(tidy(draft)));
  }, [yaml, draft === null]);
  const back = () => void host.navigate(name && draft ? placeOf("view", draft) : "");
  const swap = (to) => {
    if (!to) {
      try {
        setDraft(read(text));
      } catch (error) {
        return setProblem(messageOf(error));
      }
    }
    setProblem("");
    setAsYaml(to);
  };
  const save = async () => {
    setProblem("");
    setWrong([]);
    setSaving(true);
    try {
      const flaw = form.current?.querySelector("[data-mistake]");
      if (!yaml && flaw) {
        flaw.focus();
        throw new Error("A field holds YAML that cannot be read.");
      }
      const object = yaml ? read(text) : draft;
      if (!object?.metadata?.name) throw new Error("It has no name.");
      const stored = name ? await host.update(object) : await host.create(object);
      await host.notify(`${resource.kind} ${stored.metadata.name} is saved.`);
      await host.navigate(placeOf("view", stored));
    } catch (error) {
      const refused = error;
      setWrong((refused.causes ?? []).flatMap((one) => one.field ? [{ field: one.field, message: one.message ?? "" }] : []));
      setProblem(refused.code === 409 && name ? `${refused.message} Somebody has changed it meanwhile: open it again.` : messageOf(error));
    } finally {
      setSaving(false);
    }
  };
  const title = name ? `Edit ${resource.kind} ${name}` : `New ${resource.kind}`;
  if (schema === void 0 || !draft) {
    return /* @__PURE__ */ a3("section", { class: "card", children: [
      /* @__PURE__ */ a3("div", { class: "bar", children: /* @__PURE__ */ a3("h2", { children: title }) }),
      /* @__PURE__ */ a3("p", { class: problem ? "bad message" : "empty", role: problem ? "alert" : void 0, children: problem || "Reading…" })
    ] });
  }
  const change = (change2) => setDraft({ ...draft, metadata: { ...draft.metadata, ...change2 } });
  return /* @__PURE__ */ a3("section", { class: "card", children: [
    /* @__PURE__ */ a3("div", { class: "bar", children: [
      /* @__PURE__ */ a3("h2", { children: title }),
      /* @__PURE__ */ a3("span", { class: "space" }),
      !yamlOnly && /* @__PURE__ */ a3("button", { type: "button", class: "button", "aria-pressed": asYaml, onClick: () => swap(!asYaml), children: asYaml ? "Form" : "YAML" }),
      /* @__PURE__ */ a3("button", { type: "button", class: "button", onClick: back, children: "Cancel" }),
      /* @__PURE__ */ a3("button", { type: "button", class: "button main", disabled: saving, onClick: () => void save(), children: saving ? "Saving…" : "Save" })
    ] }),
    problem && /* @__PURE__ */ a3("div", { class: "bad message", role: "alert", tabIndex: -1, ref: summary, children: problem }),
    yaml ? /* @__PURE__ */ a3("textarea", { class: "code whole", "aria-label": "YAML", spellcheck: false, wrap: "off", rows: 28, value: text, onInput: (event) => setText(event.currentTarget.value) }) : /* @__PURE__ */ a3("div", { class: "form", ref: form, children: [
      !name && /* @__PURE__ */ a3($, { children: [
        /* @__PURE__ */ a3("div", { class: "field", children: [
          /* @__PURE__ */ a3("label", { for: "name", children: [
            "Name",
            /* @__PURE__ */ a3("span", { class: "needed", title: "required", children: " *" })
          ] }),
          /* @__PURE__ */ a3("input", { id: "name", "aria-required": "true", value: draft.metadata.name, onInput: (event) => change({ name: event.currentTarget.value }) })
        ] }),
        namespaced && /* @__PURE__ */ a3("div", { class: "field", children: [
          /* @__PURE__ */ a3("label", { for: "namespace", children: "Namespace" }),
          /* @__PURE__ */ a3("select", { id: "namespace", value: draft.metadata.namespace, onChange: (event) => change({ namespace: event.currentTarget.value }), children: (namespaces.length > 0 ? namespaces : ["default"]).map((one) => /* @__PURE__ */ a3("option", { value: one, children: one })) })
        ] })
      ] }),
      /* @__PURE__ */ a3(Own, { schema: schema ?? {}, draft, wrong, onChange: setDraft })
    ] })
  ] });
}

// extension/crd-table.tsx
var MOST_ROWS = 500;
var messageOf = (error) => error?.message ?? String(error);
var placeOf = (what, object) => [what, ...object.metadata.namespace ? [object.metadata.namespace] : [], object.metadata.name].join("/");
function useThings(host, namespace) {
  const things = T2(/* @__PURE__ */ new Map());
  const [state, setState] = d2({ known: false, problem: "" });
  const [, show] = _2((count) => count + 1, 0);
  A2(() => {
    things.current = /* @__PURE__ */ new Map();
    setState({ known: false, problem: "" });
    const idOf = (one) => one.metadata.uid ?? `${one.metadata.namespace}/${one.metadata.name}`;
    const stop = host.watch(namespace ? { namespace } : {}, (event) => {
      if (event.type === "ERROR") return setState({ known: true, problem: event.message });
      if (event.type === "RESET") {
        things.current = new Map(event.items.map((one) => [idOf(one), one]));
        setState({ known: true, problem: "" });
      } else if (event.type === "DELETED") things.current.delete(idOf(event.object));
      else things.current.set(idOf(event.object), event.object);
      show(0);
    });
    return stop;
  }, [namespace]);
  return { things: things.current, ...state };
}
function CrdTable(context) {
  const [what = "", ...rest] = context.page.path.split("/").filter(Boolean);
  const namespaced = context.props.resource.scope === "Namespaced";
  const [namespace, name] = namespaced ? [rest[0], rest[1]] : [void 0, rest[0]];
  if (what === "new") return /* @__PURE__ */ a3(Edit, { ...context });
  if (what === "edit" && name) return /* @__PURE__ */ a3(Edit, { ...context, name, namespace });
  if (what === "view" && name) return /* @__PURE__ */ a3(Detail, { ...context, name, namespace });
  return /* @__PURE__ */ a3(Table, { ...context });
}
function Cell(props) {
  const { render } = props.column;
  const value = at(props.object, render.path);
  const text = render.pattern ? filled(render.pattern, value, props.object) : said(value);
  if (value === void 0 || value === null || text === "") return /* @__PURE__ */ a3("span", { class: "dim", children: "–" });
  if (render.type === "time") return /* @__PURE__ */ a3("time", { dateTime: said(value), children: timeOf(value, render.format, props.page.locale) });
  if (render.type === "link") {
    const link = safeLink(filled(render.link ?? "{value}", value, props.object, render.link ? encodeURIComponent : void 0));
    return link ? /* @__PURE__ */ a3("a", { href: link, target: "_blank", rel: "noreferrer", children: text }) : /* @__PURE__ */ a3($, { children: text });
  }
  return /* @__PURE__ */ a3($, { children: text });
}
function Table(context) {
  const { host, page, props: { resource, columns } } = context;
  const [namespace, setNamespace] = d2("");
  const [namespaces, setNamespaces] = d2([]);
  const [words, setWords] = d2("");
  const [order, setOrder] = d2(null);
  const [asked, setAsked] = d2(null);
  const { things, known, problem } = useThings(host, namespace);
  const namespaced = resource.scope === "Namespaced";
  A2(() => {
    if (namespaced) host.namespaces().then(setNamespaces, () => void 0);
  }, []);
  const all = [...things.values()].sort((a4, b) => said([a4.metadata.namespace, a4.metadata.name]).localeCompare(said([b.metadata.namespace, b.metadata.name])));
  const wanted = words ? all.filter((one) => [one.metadata.name, ...columns.map((column) => said(at(one, column.render.path)))].join(" ").toLowerCase().includes(words.toLowerCase())) : all;
  const rows = order ? [...wanted].sort((a4, b) => {
    const [x2, y3] = [sortKey(order.column, a4), sortKey(order.column, b)];
    const difference = typeof x2 === "number" && typeof y3 === "number" ? x2 - y3 : String(x2).localeCompare(String(y3));
    return order.down ? -difference : difference;
  }) : wanted;
  const remove = async (object) => {
    setAsked(null);
    try {
      await host.remove(object.metadata.name, object.metadata.namespace);
      await host.notify(`${resource.kind} ${object.metadata.name} is deleted.`);
    } catch (error) {
      await host.notify(messageOf(error), "error");
    }
  };
  const named = columns.find((column) => column.render.path.replace(/^\./, "") === "metadata.name");
  const open = (object) => /* @__PURE__ */ a3("button", { type: "button", class: "link", onClick: () => void host.navigate(placeOf("view", object)), children: object.metadata.name });
  return /* @__PURE__ */ a3("section", { class: "card", children: [
    /* @__PURE__ */ a3("div", { class: "bar", children: [
      /* @__PURE__ */ a3("input", { type: "search", placeholder: "Filter", "aria-label": `Filter ${resource.plural}`, value: words, onInput: (event) => setWords(event.currentTarget.value) }),
      namespaced && /* @__PURE__ */ a3("select", { "aria-label": "Namespace", value: namespace, onChange: (event) => setNamespace(event.currentTarget.value), children: [
        /* @__PURE__ */ a3("option", { value: "", children: "All namespaces" }),
        namespaces.map((one) => /* @__PURE__ */ a3("option", { value: one, children: one }))
      ] }),
      /* @__PURE__ */ a3("span", { class: "dim", role: "status", children: [
        known ? `${rows.length}${rows.length === all.length ? "" : ` of ${all.length}`}` : "Reading…",
        rows.length > MOST_ROWS && `; the first ${MOST_ROWS} are shown`
      ] }),
      /* @__PURE__ */ a3("span", { class: "space" }),
      /* @__PURE__ */ a3("button", { type: "button", class: "button main", onClick: () => void host.navigate("new"), children: [
        "New ",
        resource.kind
      ] })
    ] }),
    problem && /* @__PURE__ */ a3("p", { class: "bad message", role: "alert", children: problem }),
    known && !problem && rows.length === 0 && /* @__PURE__ */ a3("p", { class: "empty", children: all.length === 0 ? `No ${resource.kind} yet.` : "None of them fits." }),
    rows.length > 0 && /* @__PURE__ */ a3("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": resource.kind, children: /* @__PURE__ */ a3("table", { children: [
      /* @__PURE__ */ a3("thead", { children: /* @__PURE__ */ a3("tr", { children: [
        !named && /* @__PURE__ */ a3("th", { scope: "col", children: "Name" }),
        columns.map((column) => {
          const sorted = order?.column === column ? order.down ? "descending" : "ascending" : void 0;
          return /* @__PURE__ */ a3("th", { scope: "col", "aria-sort": sorted, children: column.enableSorting ? /* @__PURE__ */ a3("button", { type: "button", class: "sort", onClick: () => setOrder({ column, down: sorted === "ascending" }), children: [
            column.title,
            /* @__PURE__ */ a3("span", { "aria-hidden": "true", children: sorted === "ascending" ? " ↑" : sorted ? " ↓" : "" })
          ] }) : column.title }, column.key);
        }),
        /* @__PURE__ */ a3("th", { scope: "col", children: /* @__PURE__ */ a3("span", { class: "unseen", children: "Actions" }) })
      ] }) }),
      /* @__PURE__ */ a3("tbody", { children: rows.slice(0, MOST_ROWS).map((object) => /* @__PURE__ */ a3("tr", { children: [
        !named && /* @__PURE__ */ a3("td", { children: open(object) }),
        columns.map((column) => /* @__PURE__ */ a3("td", { children: column === named ? open(object) : /* @__PURE__ */ a3(Cell, { column, object, page }) }, column.key)),
        /* @__PURE__ */ a3("td", { class: "actions", children: [
          /* @__PURE__ */ a3("button", { type: "button", class: "button", "aria-label": `Edit ${object.metadata.name}`, onClick: () => void host.navigate(placeOf("edit", object)), children: "Edit" }),
          /* @__PURE__ */ a3("button", { type: "button", class: "button danger", "aria-label": `Delete ${object.metadata.name}`, onClick: () => setAsked(object), children: "Delete" })
        ] })
      ] }, object.metadata.uid ?? object.metadata.name)) })
    ] }) }),
    /* @__PURE__ */ a3(Confirm, { object: asked, kind: resource.kind, onYes: (object) => void remove(object), onNo: () => setAsked(null) })
  ] });
}
function Confirm(props) {
  const dialog = T2(null);
  const { object } = props;
  A2(() => {
    if (object && !dialog.current?.open) dialog.current?.showModal();
    if (!object && dialog.current?.open) dialog.current.close();
  }, [object]);
  const title = `Delete ${props.kind} ${object?.metadata.name ?? ""}?`;
  return /* @__PURE__ */ a3("dialog", { ref: dialog, "aria-label": title, onClose: props.onNo, children: [
    /* @__PURE__ */ a3("h2", { children: title }),
    /* @__PURE__ */ a3("p", { class: "dim", children: "Everything that was made for it goes with it. This cannot be undone." }),
    /* @__PURE__ */ a3("div", { class: "bar end", children: [
      /* @__PURE__ */ a3("button", { type: "button", class: "button", onClick: props.onNo, children: "Cancel" }),
      /* @__PURE__ */ a3("button", { type: "button", class: "button danger", onClick: () => object && props.onYes(object), children: "Delete" })
    ] })
  ] });
}

// extension/style.ts
var TEXT = `
:root {
  --ground: light-dark(#f6f7f9, #101216); --surface: light-dark(#ffffff, #171a20); --raised: light-dark(#f0f2f5, #1f232b);
  --line: light-dark(#e1e5eb, #2a2f39); --text: light-dark(#1b2029, #e6e9ef); --dim: light-dark(#5a6473, #9aa4b2);
  --accent: light-dark(#3552d8, #8fa5ff); --on-accent: light-dark(#ffffff, #10131c); --good: light-dark(#0f7a43, #5fd39a);
  --busy: light-dark(#8a5a00, #f0bd5b); --bad: light-dark(#b3261e, #ff8f86);
  --mono: ui-monospace, "SF Mono", "Cascadia Code", "DejaVu Sans Mono", Menlo, Consolas, monospace;
  font: 14px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif;
  background: var(--ground); color: var(--text);
}
*, ::before, ::after { box-sizing: border-box; }
body { margin: 0; }
h2, p, dl, dd, ul { margin: 0; }
h2 { font-size: 14px; font-weight: 600; overflow-wrap: anywhere; }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; border-radius: 4px; }
a, .link { color: var(--accent); text-decoration: none; }
a:hover, .link:hover { text-decoration: underline; }
.link { all: unset; cursor: pointer; color: var(--accent); }
.link:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
.dim, small { color: var(--dim); }
.good { color: var(--good); } .busy { color: var(--busy); } .bad, .needed { color: var(--bad); }
.space { flex: 1; }
.unseen { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
.card { background: var(--surface); border: 1px solid var(--line); border-radius: 12px; margin-bottom: 16px; overflow: hidden; }
.bar { display: flex; align-items: center; gap: 10px; flex-wrap: wrap; padding: 12px 18px; border-bottom: 1px solid var(--line); }
.bar.end { justify-content: flex-end; padding: 0; border: 0; }
.empty { padding: 26px 18px; color: var(--dim); text-align: center; }
.message { padding: 12px 18px; border-bottom: 1px solid var(--line); overflow-wrap: anywhere; }
input, select, textarea, .button { font: inherit; color: inherit; }
input, select, textarea { background: var(--surface); border: 1px solid light-dark(#8b95a4, #5a6473); border-radius: 7px; padding: 6px 10px; min-width: 0; }
input[type="search"] { width: min(300px, 100%); }
input:not([type]), input[type="text"], input[type="number"], .form select, textarea { width: 100%; }
[aria-invalid="true"] { border-color: var(--bad); }
textarea { resize: vertical; }
.code, pre { font: 12.5px/20px var(--mono); }
.code.whole { display: block; border: 0; border-radius: 0; padding: 14px 18px; background: light-dark(#fbfcfd, #12151a); outline-offset: -2px; }
pre { margin: 0; padding: 14px 18px; overflow: auto; max-height: 60vh; background: light-dark(#fbfcfd, #12151a); }
.button { font-weight: 550; padding: 5px 12px; border-radius: 7px; border: 1px solid var(--line); background: var(--surface); cursor: pointer; white-space: nowrap; }
.button:hover { background: var(--raised); }
.button.main { background: var(--accent); border-color: var(--accent); color: var(--on-accent); }
.button.danger { color: var(--bad); }
.button:disabled { opacity: .55; cursor: default; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: 9px 18px; border-bottom: 1px solid var(--line); vertical-align: top; }
tbody tr:last-child td { border-bottom: 0; }
tbody tr:hover { background: light-dark(#fafbfc, #1a1e25); }
th { font-size: 12px; font-weight: 550; color: var(--dim); white-space: nowrap; background: light-dark(#fafbfc, #191c23); }
td { overflow-wrap: anywhere; }
.sort { all: unset; cursor: pointer; }
.sort:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
td.actions { text-align: right; white-space: nowrap; }
td .button { padding: 0 10px; font-size: 12.5px; margin-left: 6px; }
dl { padding: 14px 18px; display: grid; gap: 8px; }
dl > div { display: grid; grid-template-columns: minmax(120px, 220px) 1fr; gap: 18px; }
dt { color: var(--dim); }
dd { overflow-wrap: anywhere; }
.conditions { list-style: none; padding: 0; }
.conditions li { padding: 10px 18px; border-bottom: 1px solid var(--line); }
.conditions li:last-child { border-bottom: 0; }
.conditions p { overflow-wrap: anywhere; color: var(--dim); }
.form { display: grid; gap: 16px; padding: 18px; max-width: 760px; }
.field { display: grid; gap: 4px; align-content: start; }
.field > label { font-weight: 550; }
.field.check { grid-template-columns: auto 1fr; gap: 4px 10px; align-items: center; }
.field.check > div { grid-column: 2; }
small { display: block; font-size: 12.5px; }
small.bad { color: var(--bad); }
.group, .items { border: 1px solid var(--line); border-radius: 10px; padding: 12px 16px; margin: 0; min-width: 0; }
.group > summary { font-weight: 600; cursor: pointer; }
.group[open] > summary { margin-bottom: 10px; }
.group > .field, .group > .group, .group > .items, .item > .field, .item > .group, .item > .items { margin-top: 14px; }
.items > legend { font-weight: 600; padding: 0 6px; }
.item { border-left: 3px solid var(--line); padding: 0 0 6px 14px; margin: 10px 0 14px; }
.item > .button { margin-top: 12px; }
dialog { border: 1px solid var(--line); border-radius: 14px; background: var(--surface); color: var(--text); max-width: 440px; padding: 22px; box-shadow: 0 18px 60px rgb(0 0 0 / .25); }
dialog::backdrop { background: rgb(10 12 16 / .45); }
dialog p { margin: 10px 0 20px; }
.site { display: block; width: 100%; height: 100vh; border: 0; }
`;
function dress(page) {
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(TEXT);
  page.adoptedStyleSheets = [...page.adoptedStyleSheets, sheet];
  return () => {
    page.adoptedStyleSheets = page.adoptedStyleSheets.filter((one) => one !== sheet);
  };
}

// extension/index.tsx
function mount(root, host, page, manifest) {
  const found = manifest.pages?.find((one) => one.id === page.id);
  if (!found) throw new Error(`the manifest has no page ${page.id}`);
  const undress = dress(document);
  switch (found.entryComponent) {
    case "CrdTable":
      Q(/* @__PURE__ */ a3(CrdTable, { host, page, props: found.props }), root);
      break;
    case "Iframe":
      Q(/* @__PURE__ */ a3(Iframe, { src: String(found.props?.src ?? "") }), root);
      break;
    default:
      undress();
      throw new Error(`this library has no page ${found.entryComponent}`);
  }
  return () => {
    Q(null, root);
    undress();
  };
}
function Iframe(props) {
  return /* @__PURE__ */ a3("iframe", { class: "site", title: "Site", src: props.src, referrerpolicy: "no-referrer" });
}
export {
  mount
};
