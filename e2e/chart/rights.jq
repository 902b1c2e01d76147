# The rights of each component, as rows of the table in docs/security.md. Input: the objects of a rendering.

. as $objects
| def code: map("`\(.)`") | join(", ");
  def rules($binding): $objects[]
    | select(.kind == $binding.roleRef.kind and .metadata.name == $binding.roleRef.name
        and (.kind == "ClusterRole" or .metadata.namespace == $binding.metadata.namespace))
    | .rules[];
  def place($binding): if $binding.kind == "ClusterRoleBinding" then "everywhere" else "its own namespace" end;

  ("operator", "webhook", "proxy") as $who
  | [$objects[] | select(.kind == "ClusterRoleBinding" or .kind == "RoleBinding")
      | select(any(.subjects[]; .name | endswith("-" + $who)))] as $bindings
  | if $bindings == [] then "| \($who) | | nothing | |"
    else $bindings[] as $binding
      | rules($binding)
      | "| \($who) | \(place($binding)) | \(.resources | code) of \(.apiGroups | map(if . == "" then "core" else "`\(.)`" end) | join(", "))"
        + (if .resourceNames then ", only \(.resourceNames | code)" else "" end)
        + " | \(.verbs | join(", ")) |"
    end
